"""Automatic restarts of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.core.trainer import ROOT, TINY, Ended, environment, finish, run, text_file
from trainer_core import protocol
from trainer_core.runs import run_dir

STEPS = 12
FEW = [*TINY, "--max-steps", str(STEPS), "--save-steps", "4", "--eval-steps", "0", "--sample-steps", "0"]

BREAKING = """
# Stands for the driver: ends the trainer when it says that step, for as many starts as the file has lines.
import faulthandler, os, time
from pathlib import Path
from trainer_core import protocol, restart_policy, wire

restart_policy._INITIAL_DELAY_S = float(os.environ["WAIT"])
plan, emit = Path(os.environ["BREAKS"]), wire.EventDispatcher.emit
saved = 0  # the newest step that is on disk

def breaking(self, event):
    global saved
    emit(self, event)
    if isinstance(event, protocol.Checkpoint | protocol.Hello):
        saved = getattr(event, "step", None) or getattr(event, "resumed_from_step", None) or 0
    lines = plan.read_text().split()
    if isinstance(event, protocol.Step) and lines and lines[0].startswith(f"{event.step}:"):
        while saved < event.step // 4 * 4:  # checkpoints are written beside training
            time.sleep(0.01)
        plan.write_text(" ".join(lines[1:]))
        if lines[0].endswith("crash"):
            faulthandler._read_null()
        if lines[0].endswith("gone"):
            os._exit(0)  # as some programs end others on Windows
        raise RuntimeError("CUDA error: unspecified launch failure" if lines[0].endswith("cuda") else "something else")

wire.EventDispatcher.emit = breaking
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("家 home")
    text_file(folder)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(BREAKING, encoding="utf-8")
    return folder


def begin(
    home: Path, name: str, *breaks: str, restarts: int = 3, wait: float = 0.1, steps: int = STEPS
) -> subprocess.Popen[bytes]:
    """A supervised run that breaks as planned, once for each start: `STEP:crash`, `:cuda`, `:gone` or `:else`."""
    plan = home / f"{name.replace('/', '-')}.plan"
    plan.write_text(" ".join(breaks))
    path = os.pathsep.join((str(home / "site"), str(ROOT)))
    more = {"PYTHONPATH": path, "BREAKS": str(plan), "WAIT": str(wait)}
    counts = ["--restarts", str(restarts), "--max-steps", str(steps)]
    arguments = ["train", *FEW, *counts, "--data", str(home / "文本 text.txt"), "--run-dir", name]
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home) | more,
        cwd=home,
        bufsize=0,  # see tests.core.trainer.start
        start_new_session=True,
    )


def codes(ended: Ended) -> list[str]:
    return [event.code for event in ended.of(protocol.Warn)]


def read_hello(process: subprocess.Popen[bytes], until: type = protocol.Step) -> protocol.Hello:
    """The greeting of the first child; returns at its first step."""
    assert process.stdout is not None
    hello = None
    for line in process.stdout:
        event = protocol.decode_event(line)
        hello = event if isinstance(event, protocol.Hello) else hello
        if isinstance(event, until):
            break
    assert hello is not None
    return hello


def test_a_run_restarted_after_failures_equals_an_uninterrupted_run(home: Path) -> None:
    whole = finish(begin(home, "whole"))
    assert whole.code == 0, whole.stderr
    broken = finish(begin(home, "broken", "6:crash", "10:cuda"))
    assert broken.code == 0, broken.stderr
    first, after_crash, after_loss = (hello.resumed_from_step for hello in broken.of(protocol.Hello))
    assert (first, after_crash) == (None, 4)
    assert after_loss in (8, 9, 10)  # who is still there to say what happened can save, too
    said = [event for event in broken.of(protocol.Warn) if event.code == "run.restarting"]
    assert [(event.params["attempt"], event.params["step"]) for event in said] == [(1, 4), (1, after_loss)]
    assert codes(broken)[0] == "failure.access_violation"
    for file in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / f"step-{STEPS:08d}" / file
        assert (home / "broken" / last).read_bytes() == (home / "whole" / last).read_bytes(), file
    assert broken.losses == whole.losses
    kept = [protocol.decode_event(line) for line in (home / "broken" / "events.jsonl").read_bytes().splitlines()]
    assert [event.code for event in kept if isinstance(event, protocol.Warn)] == codes(broken)


def test_the_supervisor_gives_up_without_progress_and_exits_like_the_child(home: Path) -> None:
    ended = finish(begin(home, "hopeless", "6:crash", "6:crash", restarts=1))
    assert ended.code == -signal.SIGSEGV or sys.platform == "win32"
    assert codes(ended)[-1] == "run.gave_up"
    assert ended.of(protocol.Warn)[-1].params["step"] == 4


def test_a_permanent_failure_is_not_restarted(home: Path) -> None:
    ended = finish(begin(home, "wrong", "2:else"))
    assert ended.code == 1
    assert ended.error.code == "internal"
    assert len(ended.of(protocol.Hello)) == 1


def test_exit_code_0_without_a_final_event_is_a_failure(home: Path) -> None:
    ended = finish(begin(home, "gone", "6:gone"))
    assert ended.code == 1
    assert codes(ended) == ["run.vanished"]


@pytest.mark.skipif(sys.platform == "win32", reason="the exit code of a process that was ended there is the ender's")
def test_a_killed_trainer_is_reported_and_not_restarted(home: Path) -> None:
    process = begin(home, "killed")
    os.kill(read_hello(process).pid, signal.SIGKILL)  # as the system does when its memory is full
    ended = finish(process)
    assert ended.code == -signal.SIGKILL
    assert codes(ended) == ["failure.killed"]
    kept = [protocol.decode_event(line) for line in (home / "killed" / "events.jsonl").read_bytes().splitlines()]
    assert [event.code for event in kept if isinstance(event, protocol.Warn)] == ["failure.killed"]


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl+C cannot be sent to one child there")
@pytest.mark.parametrize("receiver", ["process", "terminal"])
def test_ctrl_c_stops_the_child_without_a_restart(home: Path, receiver: str) -> None:
    process = begin(home, f"stopped {receiver}", steps=5000)
    hello = read_hello(process)
    assert hello.pid != process.pid
    (os.kill if receiver == "process" else os.killpg)(process.pid, signal.SIGINT)
    ended = finish(process)
    assert ended.code == 3
    assert ended.of(protocol.Done)[0].reason == "stopped"
    assert not codes(ended)
    assert not psutil.pid_exists(hello.pid)


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl+C cannot be sent to one child there")
def test_ctrl_c_cancels_a_pending_restart(home: Path) -> None:
    process = begin(home, "waiting", "2:crash", wait=60)
    read_hello(process, until=protocol.Warn)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert finish(process, timeout=20).code == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
def test_the_child_of_a_killed_supervisor_saves_and_exits(home: Path) -> None:
    process = begin(home, "left alone", steps=5000)
    child = psutil.Process(read_hello(process).pid)
    process.kill()
    process.communicate()
    child.wait(timeout=20)
    ends = run_dir.tail_events(home / "left alone" / "events.jsonl")
    (done,) = [event for event in ends if isinstance(event, protocol.Done)]
    resumed = run(home, "train", "--resume", "left alone", "--max-steps", str(done.steps + 1))
    assert (resumed.code, resumed.of(protocol.Hello)[0].resumed_from_step) == (0, done.steps)


def test_a_run_whose_processes_were_killed_can_be_resumed(home: Path) -> None:
    """As by a machine that is switched off."""
    process = begin(home, "runs/orphan", steps=5000)
    child = psutil.Process(read_hello(process, until=protocol.Checkpoint).pid)
    child.kill()
    process.kill()
    process.communicate()
    child.wait(timeout=20)
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "runs"], capture_output=True, env=environment(home), cwd=home, check=True
    )
    assert "orphan was interrupted at step " in done.stdout.decode("utf-8")  # its lock names a process that is gone
    resumed = run(home, "train", "--resume", "latest", "--max-steps", "12")
    assert resumed.code == 0
    assert resumed.of(protocol.Hello)[0].resumed_from_step >= 4


def test_control_stdin_disables_the_supervisor(home: Path) -> None:
    arguments = ["train", *FEW, "--restarts", "3", "--data", str(home / "文本 text.txt"), "--run-dir", "window"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments, "--control", "stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=home,
    )
    hello = read_hello(process)
    assert hello.pid == process.pid or sys.platform == "win32"  # where a virtual environment has a launcher
    process.stdin.close()
    process.stdin = None
    finish(process)
