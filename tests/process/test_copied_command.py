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

SPECIAL_CHARACTERS: Final = """a b & c's $HOME "it" `x` 数据!"""
SETTINGS: Final[dict[str, Any]] = {
    "hidden_dim": 16, "n_layers": 1, "max_seq_len": 16, "batch_size": 1, "vocab_size": 300, "max_steps": 1,
    "device": "cpu", "compile": "off", "learning_rate": 1 / 3000,
    "sample_prompts": [f"-{SPECIAL_CHARACTERS}", "100% & more"],
}  # fmt: skip


def train(
    arguments: list[str], run: Path, home: Path, environment: Mapping[str, str], **options: Any
) -> dict[str, Any]:
    """Train; returns the configuration stored in the run directory."""
    process = subprocess.run(
        arguments,
        env={**environment, "TRAINDECK_HOME": str(home)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        **options,
    )
    assert process.returncode == 0, process.stderr[-2000:] + process.stdout[-2000:]
    config: dict[str, Any] = yaml.safe_load(run.joinpath("config.yaml").read_text(encoding="utf-8"))
    return config


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_copied_command_trains_the_same_run_in_bash(tmp_path: Path) -> None:
    home, other_folder = tmp_path / f"home {SPECIAL_CHARACTERS}", tmp_path / "elsewhere"
    data = home / f"{SPECIAL_CHARACTERS}.txt"
    for folder in (home, other_folder):
        folder.mkdir()
    data.write_text("A line of training text.\n" * 200, encoding="utf-8")

    def arguments(run: Path, source: str) -> list[str]:
        return command_line.train_arguments(presets.load("cpu"), SETTINGS, [source], str(run))

    window_run, pasted_run = home / "runs" / "by window", home / "runs" / f"by {SPECIAL_CHARACTERS}"
    window_config = train(
        [*trainer_command(), *arguments(window_run, str(data))], window_run, home, child_process.environment(), cwd=home
    )
    command = command_line.terminal_command(
        arguments(pasted_run, data.name), "bash", python=sys.executable, base_folder=home
    )
    assert train(["bash", "-c", command], pasted_run, home, os.environ, cwd=other_folder) == window_config
    assert window_config["sample_prompts"] == SETTINGS["sample_prompts"]
