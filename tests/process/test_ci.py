"""The last lines of `.ci/run` name each stage with its result, and its exit code follows from them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a shell script for Linux")


class Checkout:
    """A folder with the real `.ci/run`, and commands that stand in for what it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools = folder / "checkout", folder / "tools"
        (self.folder / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", self.folder / ".ci" / "run")
        self.write("train_gpu.sh", "echo tests")
        self.write(".ci/windows", "echo tests on Windows")
        self.write("../tools/dpkg-query", "echo install ok installed")
        self.write("../tools/apt-get", "exit 100")

    def write(self, name: str, script: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def run(self, **environment: str) -> tuple[int, list[str]]:
        """Exit code, and the last lines: one for each stage."""
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        given = {**os.environ, "PATH": path, **environment}
        done = subprocess.run(
            [self.folder / ".ci" / "run"], env=given, capture_output=True, encoding="utf-8", timeout=60, check=False
        )
        return done.returncode, done.stdout.splitlines()[-3:]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_both_stages_that_pass_are_named_last(checkout: Checkout) -> None:
    assert checkout.run() == (0, ["== Linux stage: passed", "== Slow groups stage: passed", "== Windows stage: passed"])


def test_a_failure_on_linux_is_named_and_windows_is_still_tested(checkout: Checkout) -> None:
    checkout.write("train_gpu.sh", "exit 3")
    failed = "failed (exit code 3)"
    assert checkout.run() == (
        3,
        [f"== Linux stage: {failed}", f"== Slow groups stage: {failed}", "== Windows stage: passed"],
    )


def test_a_failure_in_a_slow_group_counts(checkout: Checkout) -> None:
    checkout.write("train_gpu.sh", 'case "$*" in *smoke*) exit 4;; esac')
    code, said = checkout.run()
    assert code == 4
    assert said[:2] == ["== Linux stage: passed", "== Slow groups stage: failed (exit code 4)"]


def test_a_failure_on_windows_counts(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "exit 1")
    assert checkout.run() == (
        1,
        ["== Linux stage: passed", "== Slow groups stage: passed", "== Windows stage: failed (exit code 1)"],
    )


def test_a_windows_that_does_not_end_in_its_time_is_a_failure(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "sleep 30")
    code, said = checkout.run(TRAINDECK_WINDOWS_LIMIT="1")
    assert (code, said[2]) == (124, "== Windows stage: failed (timed out, limit 1 s)")


def test_a_windows_that_ran_out_of_its_own_time_is_a_failure(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "exit 124")
    code, said = checkout.run()
    assert code == 124
    assert said[2].startswith("== Windows stage: failed (timed out")


def test_a_windows_that_is_not_there_is_said_to_be_not_run(checkout: Checkout) -> None:
    shutil.copy(ROOT / ".ci" / "windows", checkout.folder / ".ci" / "windows")
    missing = checkout.folder / "missing"
    code, said = checkout.run(TRAINDECK_WINDOWS=str(missing))
    assert (code, said[0]) == (0, "== Linux stage: passed")
    assert said[2] == f"== Windows stage: NOT RUN ({missing}/run, a Windows to test on, is not there)"


def test_a_stage_without_its_script_is_said_to_be_not_run(checkout: Checkout) -> None:
    (checkout.folder / ".ci" / "windows").unlink()
    code, said = checkout.run()
    assert (code, said[2]) == (0, "== Windows stage: NOT RUN (.ci/windows is missing)")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root installs packages")
def test_no_stage_runs_without_the_system_libraries(checkout: Checkout) -> None:
    checkout.write("../tools/dpkg-query", "exit 1")
    code, said = checkout.run()
    assert code == 100
    assert said == [
        "== Linux stage: NOT RUN (the system libraries could not be installed)",
        "== Slow groups stage: NOT RUN (an earlier stage was interrupted)",
        "== Windows stage: NOT RUN (an earlier stage was interrupted)",
    ]
