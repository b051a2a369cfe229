"""Modules loaded before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, run, text_file
from trainer_core.messages import ExitCode


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_without_compilation_does_not_load_the_compiler(
    tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile loads 1,300 modules, a third of the time to the first step."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    data = ("--data", str(text_file(tmp_path)))
    result = run(tmp_path, "train", *TINY, *data, "--max-steps", "2", "--optimizer", optimizer, "--output", "json")
    assert result.code == ExitCode.FINISHED, result.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "torch.optim" in loaded
    assert "torch._dynamo" not in loaded
