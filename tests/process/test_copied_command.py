"""The command line copied from the window, in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.core import command_line
from app.services.trainer_process import trainer_command
from trainer_core import presets
from trainer_core.system import child_process

ODD: Final = """a b & c's $HOME "it" `x` 数据!"""
SMALL: Final[dict[str, Any]] = {
    "hidden_dim": 16, "n_layers": 1, "max_seq_len": 16, "batch_size": 1, "vocab_size": 300, "max_steps": 1,
    "device": "cpu", "compile": "off", "sample_prompts": [f"-{ODD}", "100% & more"], "learning_rate": 1 / 3000,
}  # fmt: skip


def made(arguments: list[str], run: Path, home: Path, environment: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """Train, and read the configuration that the run wrote down."""
    done = subprocess.run(
        arguments,
        env={**environment, "TRAINDECK_HOME": str(home)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        **options,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    read: dict[str, Any] = yaml.safe_load(run.joinpath("config.yaml").read_text(encoding="utf-8"))
    return read


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_copied_command_trains_the_same_run_in_bash(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / f"home {ODD}", tmp_path / "elsewhere"
    data = home / f"{ODD}.txt"
    for folder in (home, elsewhere):
        folder.mkdir()
    data.write_text("Everything that is learned is learned step by step.\n" * 200, encoding="utf-8")

    def arguments(run: Path, source: str) -> list[str]:
        return command_line.train_arguments(presets.load("cpu"), SMALL, [source], str(run))

    by_window, by_paste = home / "runs" / "by window", home / "runs" / f"by {ODD}"
    window = made(
        [*trainer_command(), *arguments(by_window, str(data))], by_window, home, child_process.environment(), cwd=home
    )
    pasted = command_line.terminal_command(
        arguments(by_paste, data.name), "bash", python=sys.executable, base_folder=home
    )
    assert made(["bash", "-c", pasted], by_paste, home, os.environ, cwd=elsewhere) == window
    assert window["sample_prompts"] == SMALL["sample_prompts"]
