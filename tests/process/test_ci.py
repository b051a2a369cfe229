"""`.ci/run`: result lines of the stages and the exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import slow

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a shell script for Linux")


class Checkout:
    """A folder with the real `.ci/run` and fake commands."""

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

    def run(self, lines: int = 3, **environment: str) -> tuple[int, list[str]]:
        """Return the exit code and the last lines, by default the result lines of the stages."""
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, **environment}
        done = subprocess.run(
            [self.folder / ".ci" / "run"], env=variables, capture_output=True, encoding="utf-8", timeout=60, check=False
        )
        return done.returncode, done.stdout.splitlines()[-lines:]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_last_lines_name_the_stages_that_passed(checkout: Checkout) -> None:
    assert checkout.run() == (0, ["== Linux stage: passed", "== Slow groups stage: passed", "== Windows stage: passed"])


def test_the_windows_stage_runs_after_a_failure_on_linux(checkout: Checkout) -> None:
    checkout.write("train_gpu.sh", "exit 3")
    failed = "failed (exit code 3)"
    assert checkout.run() == (
        3,
        [f"== Linux stage: {failed}", f"== Slow groups stage: {failed}", "== Windows stage: passed"],
    )


def test_failed_tests_and_their_errors_are_repeated_at_the_end(checkout: Checkout) -> None:
    failure = "____ test_sums ____", "E   assert 1 == 2", "FAILED tests/test_sums.py::test_sums - assert 1 == 2"
    checkout.write("train_gpu.sh", "\n".join([*(f"echo '{line}'" for line in failure), "echo 1 failed", "exit 1"]))
    _, results = checkout.run(lines=7)
    assert results[:4] == ["== slow: errors", *failure]


def test_a_failure_in_a_slow_group_sets_the_exit_code(checkout: Checkout) -> None:
    checkout.write("train_gpu.sh", 'case "$*" in *smoke*) exit 4;; esac')
    code, results = checkout.run()
    assert code == 4
    assert results[:2] == ["== Linux stage: passed", "== Slow groups stage: failed (exit code 4)"]


def test_a_failure_on_windows_sets_the_exit_code(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "exit 1")
    assert checkout.run() == (
        1,
        ["== Linux stage: passed", "== Slow groups stage: passed", "== Windows stage: failed (exit code 1)"],
    )


def test_a_windows_stage_that_exceeds_the_time_limit_fails(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "sleep 30")
    code, results = checkout.run(TRAINDECK_WINDOWS_LIMIT="1")
    assert (code, results[2]) == (124, "== Windows stage: failed (timed out, limit 1 s)")


def test_a_windows_stage_that_reports_a_timeout_fails(checkout: Checkout) -> None:
    checkout.write(".ci/windows", "exit 124")
    code, results = checkout.run()
    assert code == 124
    assert results[2].startswith("== Windows stage: failed (timed out")


def test_without_windows_its_stage_is_not_run(checkout: Checkout) -> None:
    shutil.copy(ROOT / ".ci" / "windows", checkout.folder / ".ci" / "windows")
    missing = checkout.folder / "missing"
    code, results = checkout.run(TRAINDECK_WINDOWS=str(missing))
    assert (code, results[0]) == (0, "== Linux stage: passed")
    assert results[2] == f"== Windows stage: NOT RUN ({missing}/run does not exist)"


def test_a_stage_without_a_script_is_not_run(checkout: Checkout) -> None:
    (checkout.folder / ".ci" / "windows").unlink()
    code, results = checkout.run()
    assert (code, results[2]) == (0, "== Windows stage: NOT RUN (.ci/windows is missing)")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root installs packages")
def test_no_stage_is_run_without_system_libraries(checkout: Checkout) -> None:
    checkout.write("../tools/dpkg-query", "exit 1")
    code, results = checkout.run()
    assert code == 100
    assert results == [
        "== Linux stage: NOT RUN (the system libraries could not be installed)",
        "== Slow groups stage: NOT RUN (an earlier stage was interrupted)",
        "== Windows stage: NOT RUN (an earlier stage was interrupted)",
    ]


def test_every_slow_test_exists() -> None:
    entries = [entry for group in slow.SLOW.values() for entry in group]
    for file, _, name in (entry.partition("::") for entry in [*entries, *slow.SMOKE]):
        assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / file).read_text(encoding="utf-8") or not name, name
