"""Fixtures of the tests of faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 7 MiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", str(folder)], check=False)
    if mount.returncode:
        pytest.skip("mounting is not allowed on this machine")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
