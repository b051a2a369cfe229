"""Tests that need Windows: `train_gpu.bat test tests/windows`, or `.ci/windows` on Wine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from batch_project import OTHER_VERSION, BatchProject, write_program

HERE = Path(__file__).resolve().parent
NEEDS_WINDOWS = pytest.mark.skipif(os.name != "nt", reason="needs Windows; .ci/windows runs these on Wine")


# Inherited by all descendants, even after their parent has exited.
MARK = "TRAINDECK_TESTS"
os.environ[MARK] = str(os.getpid())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(NEEDS_WINDOWS)


def own_processes() -> dict[psutil.Process, str]:
    """Running processes started by these tests, with their command lines."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                found[process] = " ".join(process.cmdline())
    return found


@pytest.fixture(autouse=True)
def no_process_remains() -> Iterator[None]:
    """All processes started by a test exit within 30 s of its end."""
    before = own_processes()
    yield
    until = time.monotonic() + 30
    while (remaining := {process: line for process, line in own_processes().items() if process not in before}) and (
        time.monotonic() < until
    ):
        time.sleep(0.5)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not remaining


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> BatchProject:
    """A project that is set up once per session, in a folder with special characters in its name.

    The first Python on the PATH is too new.
    """
    project = BatchProject(tmp_path_factory.mktemp("set-up"))
    write_program(project.bin / "python.exe", OTHER_VERSION.format(version="(3, 14, 0)"))
    first = project.run("setup")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "first start" in first.stderr
    assert "PyTorch build: cpu (set by you)" in first.stderr
    (project.bin / "python.exe").unlink()
    return project
