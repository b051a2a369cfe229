"""The context of a command: output to the terminal and to the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer_core.system import child_process

_CODE = """
import logging, sys
from pathlib import Path
from trainer_core.command_runner import CommandContext
from trainer_core.runs.run_dir import RunDir
run = RunDir(Path(sys.argv[1]))
run.create()
with CommandContext(sys.argv[2]) as job:
    job.open_run(run)
    logging.getLogger("trainer_core.train.nccl").warning("NCCL cannot be used")
    print("of a library", file=sys.stderr)
    if sys.argv[3] == "full":
        job._log.close()
        logging.getLogger("trainer_core").warning("there is no room for this")
"""


def outcome(run: Path, output: str, disk: str = "") -> str:
    """What a command in which something is logged leaves on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(run), output, disk],
        env=child_process.environment(), capture_output=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize("output", ["plain", "json"])
def test_log_records_are_hidden_from_a_terminal(output: str, tmp_path: Path) -> None:
    told = outcome(tmp_path / "run", output)
    assert ("NCCL cannot be used" in told) == (output == "json")
    assert "of a library" in told
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert "NCCL cannot be used" in log
    assert "of a library" in log


def test_a_log_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    assert outcome(tmp_path / "run", "plain", "full") == "of a library\n"
