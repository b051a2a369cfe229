"""`train_gpu test`: all checks of the repository."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import checks


@pytest.mark.skipif(os.name == "nt", reason="the fake interpreter is a shell script")
def test_all_checks_run_and_the_first_failure_sets_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\ncase $2 in mypy) exit 5;; pytest) exit 1;; esac', encoding="utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for arguments in (["-k", "some thing"], [], ["--all", "-x"]):
        assert checks.run(arguments) == 5
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert [call.split()[1] for call in calls[:4]] == ["ruff", "mypy", "import", "pytest"]
    assert [call for call in calls if "pytest" in call] == [
        "-m pytest -k some thing",
        "-m pytest -n 2 --dist loadfile -m not slow",
        "-m pytest -n 2 --dist loadfile -x",
    ]
