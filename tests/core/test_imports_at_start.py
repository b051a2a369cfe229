"""Modules loaded before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.trainer import TINY, run, text_file
from trainer_core.messages import ExitCode


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_without_compilation_does_not_load_the_compiler(
    tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's compiler is 1,300 modules, and a third of the time from the start to the first step."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    data = ("--data", str(text_file(tmp_path)))
    ended = run(tmp_path, "train", *TINY, *data, "--max-steps", "2", "--optimizer", optimizer, "--output", "json")
    assert ended.code == ExitCode.FINISHED, ended.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "torch.optim" in loaded
    assert "torch._dynamo" not in loaded
