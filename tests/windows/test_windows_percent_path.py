"""A folder with `%` in its name, without train_gpu.bat: on Wine, unlike on Windows, `%~dp0` drops the character."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_project import LauncherProject


@pytest.mark.in_english
def test_setup_works_in_a_folder_with_percent_signs(tmp_path: Path) -> None:
    project = LauncherProject(tmp_path, "100% 数据 %PATH%")
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
    received = json.loads(done.stdout.splitlines()[-1])
    assert received["args"] == ["train", "--run-name", "50% %PATH%"]
    assert (project.root / ".venv" / "Scripts" / "python.exe").exists()
