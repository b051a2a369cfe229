"""A trainer whose parent or reader is gone saves and ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.faults import small
from bench.faults.small import Unbroken
from tests.core.trainer import Ended, environment, run
from trainer_core import protocol
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

STEPS = 3000
PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.pid, flush=True)
for line in child.stdout:
    pass
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home")


@pytest.fixture(scope="module")
def never_ending(home: Path) -> Unbroken:
    """A run that nobody waits for the end of."""
    return Unbroken(small.text_file(home), home / "unbroken", STEPS, {}, 0.0)


def said(record: Path, kind: type) -> list[protocol.AnyEvent]:
    return [event for event in run_dir.tail_events(record) if isinstance(event, kind)]


def wait_for_steps(record: Path, pid: int) -> None:
    deadline = time.monotonic() + 90
    while not said(record, protocol.Step):
        assert psutil.pid_exists(pid)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_saved_and_goes_on(home: Path, folder: RunDir) -> None:
    """It stopped behind a step that is saved, and a resume takes it up there."""
    (done,) = said(folder.events, protocol.Done)
    assert isinstance(done, protocol.Done)
    assert (done.reason, done.steps > 0) == ("parent_lost", True)
    assert small.newest(folder.path) == (done.steps, [])
    assert run_dir.summarize(folder).resumable
    more = run(home, "train", "--resume", str(folder.path), "--max-steps", str(done.steps + 1))
    assert (more.code, more.of(protocol.Hello)[0].resumed_from_step) == (0, done.steps), more.stderr


def ended(process: subprocess.Popen[bytes]) -> Ended:
    _, errors = process.communicate(timeout=90)
    return Ended(process.returncode, [], errors.decode("utf-8", "replace"))


@pytest.mark.parametrize("output", ["json", "plain"])
def test_a_closed_output_stops_and_saves_the_run(home: Path, never_ending: Unbroken, output: str) -> None:
    folder = RunDir(home / f"unread {output}")
    process = subprocess.Popen(
        [*never_ending.command(folder.path), "--output", output],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=home,
    )
    wait_for_steps(folder.events, process.pid)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    end = ended(process)
    assert end.code == 3, end.stderr
    assert "Traceback" not in end.stderr
    assert_saved_and_goes_on(home, folder)


def test_a_killed_parent_stops_and_saves_the_run(home: Path, never_ending: Unbroken) -> None:
    """As a window that is ended in the task manager: both pipes break, and nobody says a word."""
    folder = RunDir(home / "orphan")
    command = [*never_ending.command(folder.path), "--control", "stdin"]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(home),
        cwd=home,
    )
    assert parent.stdout is not None
    trainer = psutil.Process(int(parent.stdout.readline()))
    wait_for_steps(folder.events, trainer.pid)
    parent.kill()
    parent.communicate()
    trainer.wait(90)
    assert_saved_and_goes_on(home, folder)
