"""The context of a command: output to the terminal and to the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer_core.system import child_process

SCRIPT = """
import logging, sys
from pathlib import Path
from trainer_core.command_runner import CommandContext
from trainer_core.runs.run_dir import RunDir
run = RunDir(Path(sys.argv[1]))
run.create()
with CommandContext(sys.argv[2]) as context:
    context.open_run(run)
    logging.getLogger("trainer_core.train.nccl").warning("NCCL cannot be used")
    print("library output", file=sys.stderr)
    if sys.argv[3] == "closed log":
        context._log.close()
        logging.getLogger("trainer_core").warning("not written")
"""


def run_script(run: Path, output: str, case: str = "") -> str:
    """Run SCRIPT and return its stderr."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(run), output, case],
        env=child_process.environment(), capture_output=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip
    return result.stderr


@pytest.mark.parametrize("output", ["plain", "json"])
def test_log_records_are_hidden_from_a_terminal(output: str, tmp_path: Path) -> None:
    stderr = run_script(tmp_path / "run", output)
    assert ("NCCL cannot be used" in stderr) == (output == "json")
    assert "library output" in stderr
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert "NCCL cannot be used" in log
    assert "library output" in log


def test_a_log_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    assert run_script(tmp_path / "run", "plain", "closed log") == "library output\n"
