"""What only Windows can show. Natively through `train_gpu.bat test tests/windows`, or on Wine through `.ci/windows`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from batch import OTHER_VERSION, Batch, write_program

HERE = Path(__file__).resolve().parent
NEEDS_WINDOWS = pytest.mark.skipif(os.name != "nt", reason="needs Windows; .ci/windows runs these on Wine")


# Children inherit it, whoever their parent is by then.
MARK = "TRAINDECK_TESTS"
os.environ[MARK] = str(os.getpid())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(NEEDS_WINDOWS)


def ours() -> dict[psutil.Process, str]:
    """The processes that these tests have started and that still run, with their command lines."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                found[process] = " ".join(process.cmdline())
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Whatever a test starts has ended soon after it."""
    before = ours()
    yield
    until = time.monotonic() + 30
    while (left := {process: line for process, line in ours().items() if process not in before}) and (
        time.monotonic() < until
    ):
        time.sleep(0.5)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not left


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Set up once, from nothing, in a folder with everything in its name that batch files trip over.

    The Python that is found first is too new.
    """
    made = Batch(tmp_path_factory.mktemp("set-up"))
    write_program(made.bin / "python.exe", OTHER_VERSION.format(version="(3, 14, 0)"))
    first = made.run("setup")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "first start" in first.stderr
    assert "PyTorch build: cpu (set by you)" in first.stderr
    (made.bin / "python.exe").unlink()
    return made
