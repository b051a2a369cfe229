"""A trainer whose parent or reader has exited saves and exits."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.faults.reference_run import ReferenceRun, newest_checkpoint
from bench.processes import python
from tests.core.trainer_process import TrainerResult, environment, run
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
def long_run(home: Path) -> ReferenceRun:
    """A run that does not finish during the tests."""
    return ReferenceRun(home, STEPS)


def events_of(events_file: Path, kind: type) -> list[protocol.AnyEvent]:
    return [event for event in run_dir.tail_events(events_file) if isinstance(event, kind)]


def wait_for_steps(events_file: Path, pid: int) -> None:
    deadline = time.monotonic() + 90
    while not events_of(events_file, protocol.Step):
        assert psutil.pid_exists(pid)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_saved_and_resumable(home: Path, stopped: RunDir) -> None:
    """The run stopped at a saved step, from which it can be resumed."""
    (done,) = events_of(stopped.events, protocol.Done)
    assert isinstance(done, protocol.Done)
    assert (done.reason, done.steps > 0) == ("parent_lost", True)
    assert newest_checkpoint(stopped.path) == (done.steps, [])
    assert run_dir.summarize(stopped).resumable
    resumed = run(home, "train", "--resume", str(stopped.path), "--max-steps", str(done.steps + 1))
    assert (resumed.code, resumed.events_of(protocol.Hello)[0].resumed_from_step) == (0, done.steps), resumed.stderr


def wait_for_exit(process: subprocess.Popen[bytes]) -> TrainerResult:
    _, errors = process.communicate(timeout=90)
    return TrainerResult(process.returncode, [], errors.decode("utf-8", "replace"))


@pytest.mark.parametrize("output", ["json", "plain"])
def test_a_closed_output_stops_and_saves_the_run(home: Path, long_run: ReferenceRun, output: str) -> None:
    stopped = RunDir(home / f"unread {output}")
    process = subprocess.Popen(
        [*python("trainer_core"), *long_run.arguments(stopped.path), "--output", output],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=home,
    )
    wait_for_steps(stopped.events, process.pid)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    result = wait_for_exit(process)
    assert result.code == 3, result.stderr
    assert "Traceback" not in result.stderr
    assert_saved_and_resumable(home, stopped)


def test_a_killed_parent_stops_and_saves_the_run(home: Path, long_run: ReferenceRun) -> None:
    """Both pipes break without a command, as when the window is ended in the task manager."""
    stopped = RunDir(home / "orphan")
    command = [*python("trainer_core"), *long_run.arguments(stopped.path), "--control", "stdin"]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(home),
        cwd=home,
    )
    assert parent.stdout is not None
    trainer = psutil.Process(int(parent.stdout.readline()))
    wait_for_steps(stopped.events, trainer.pid)
    parent.kill()
    parent.communicate()
    trainer.wait(90)
    assert_saved_and_resumable(home, stopped)
