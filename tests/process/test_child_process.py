"""Killing processes with their descendants."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainer_core.system import child_process

STARTS_CHILDREN = """
import subprocess, sys
from pathlib import Path
command = [sys.executable, "-I", "-S", "-c", "import sys, time; time.sleep(60)", sys.argv[1]]
while True:
    subprocess.Popen(command)
    Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.006, 0.01, 0.015, 0.02])
def test_children_that_are_started_during_a_kill_are_killed_too(tmp_path: Path, delay_s: float) -> None:
    marker = tmp_path / "a child was started"
    with subprocess.Popen([sys.executable, "-I", "-c", STARTS_CHILDREN, str(marker)]) as process:
        while not marker.exists():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(delay_s)
        child_process.kill_child(process)
    time.sleep(0.2)
    assert not [one for one in psutil.process_iter() if str(marker) in _command(one)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
