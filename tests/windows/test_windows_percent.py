"""A folder with `%` in its name. Wine's `%~dp0` loses it (Windows keeps it), so here without train_gpu.bat, which hands
everything over to train_gpu.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import Project


@pytest.mark.in_english
def test_traindeck_is_set_up_and_started_in_a_folder_that_looks_like_a_variable(tmp_path: Path) -> None:
    project = Project(tmp_path, "100% 数据 %PATH%")
    base = getattr(sys, "_base_executable", sys.executable)
    command = [base, "-I", "-X", "utf8", str(project.root / "train_gpu.py"), "train", "--run-name", "50% %PATH%"]
    done = subprocess.run(
        command,
        env=project.environment(TRAINDECK_TORCH="cpu", TRAINDECK_ENVIRONMENT="here"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=170,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["args"] == ["train", "--run-name", "50% %PATH%"]
    assert (project.root / ".venv" / "Scripts" / "python.exe").exists()
