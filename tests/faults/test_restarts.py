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

from tests.core.trainer_process import ROOT, TINY, TrainerResult, environment, finish, run, text_file
from trainer_core import protocol
from trainer_core.runs import run_dir

STEPS = 12
ARGUMENTS = [*TINY, "--max-steps", str(STEPS), "--save-steps", "4", "--eval-steps", "0", "--sample-steps", "0"]

FAULT_INJECTION = """
# Causes the faults of the file FAULTS (`STEP:KIND`, one for each start) when the step is reported.
import faulthandler, os, time
from pathlib import Path
from trainer_core import protocol, restart_policy, wire

restart_policy._INITIAL_DELAY_S = float(os.environ["DELAY_S"])
faults_file, emit = Path(os.environ["FAULTS"]), wire.EventDispatcher.emit
saved = 0  # step of the newest checkpoint

def emit_with_faults(self, event):
    global saved
    emit(self, event)
    if isinstance(event, protocol.Checkpoint | protocol.Hello):
        saved = getattr(event, "step", None) or getattr(event, "resumed_from_step", None) or 0
    faults = faults_file.read_text().split()
    if isinstance(event, protocol.Step) and faults and faults[0].startswith(f"{event.step}:"):
        while saved < event.step // 4 * 4:  # checkpoints are written in the background
            time.sleep(0.01)
        faults_file.write_text(" ".join(faults[1:]))
        if faults[0].endswith("crash"):
            faulthandler._read_null()
        if faults[0].endswith("exit"):
            os._exit(0)  # some programs end others with code 0 on Windows
        raise RuntimeError("CUDA error: unspecified launch failure" if faults[0].endswith("cuda") else "something else")

wire.EventDispatcher.emit = emit_with_faults
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("家 home")
    text_file(folder)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(FAULT_INJECTION, encoding="utf-8")
    return folder


def start_supervised(
    home: Path, name: str, *faults: str, restarts: int = 3, delay_s: float = 0.1, steps: int = STEPS, resume: str = ""
) -> subprocess.Popen[bytes]:
    """Start a supervised run with one fault per start: `STEP:crash`, `:cuda`, `:exit` or `:other`. `resume`: name of a
    checkpoint of the run."""
    faults_file = home / f"{name.replace('/', '-')}.faults"
    faults_file.write_text(" ".join(faults))
    path = os.pathsep.join((str(home / "site"), str(ROOT)))
    variables = {"PYTHONPATH": path, "FAULTS": str(faults_file), "DELAY_S": str(delay_s)}
    options = ["--restarts", str(restarts), "--max-steps", str(steps)]
    where = ["--resume", str(home / name / "checkpoints" / resume)] if resume else ["--run-dir", name]
    arguments = ["train", *ARGUMENTS, *options, "--data", str(home / "文本 text.txt"), *where]
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home) | variables,
        cwd=home,
        bufsize=0,  # see tests.core.trainer_process.start
        start_new_session=True,
    )


def codes(result: TrainerResult) -> list[str]:
    return [event.code for event in result.events_of(protocol.Warn)]


def read_hello(process: subprocess.Popen[bytes], last: type = protocol.Step) -> protocol.Hello:
    """Return the `hello` of the first child, once the first event of the kind `last` is read."""
    assert process.stdout is not None
    hello = None
    for line in process.stdout:
        event = protocol.decode_event(line)
        hello = event if isinstance(event, protocol.Hello) else hello
        if isinstance(event, last):
            break
    assert hello is not None
    return hello


def test_a_restart_after_the_resume_of_a_checkpoint_continues_with_a_later_one(home: Path) -> None:
    assert finish(start_supervised(home, "named", "5:other")).code != 0
    checkpoint = max((home / "named" / "checkpoints").iterdir()).name
    resumed = finish(start_supervised(home, "named", "10:crash", resume=checkpoint))
    assert resumed.code == 0, resumed.stderr
    hellos = resumed.events_of(protocol.Hello)
    assert {Path(hello.run_dir).name for hello in hellos} == {"named"}
    assert [hello.resumed_from_step for hello in hellos] == [int(checkpoint[-8:]), 8]


def test_a_run_restarted_after_failures_equals_an_uninterrupted_run(home: Path) -> None:
    uninterrupted = finish(start_supervised(home, "uninterrupted"))
    assert uninterrupted.code == 0, uninterrupted.stderr
    restarted = finish(start_supervised(home, "restarted", "6:crash", "10:cuda"))
    assert restarted.code == 0, restarted.stderr
    first, after_crash, after_loss = (hello.resumed_from_step for hello in restarted.events_of(protocol.Hello))
    assert (first, after_crash) == (None, 4)
    assert after_loss in (8, 9, 10)  # after an exception, unlike a crash, the last step is saved
    restart_warnings = [event for event in restarted.events_of(protocol.Warn) if event.code == "run.restarting"]
    assert [(event.params["attempt"], event.params["step"]) for event in restart_warnings] == [(1, 4), (1, after_loss)]
    assert codes(restarted)[0] == "failure.access_violation"
    for file in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / f"step-{STEPS:08d}" / file
        assert (home / "restarted" / last).read_bytes() == (home / "uninterrupted" / last).read_bytes(), file
    assert restarted.losses == uninterrupted.losses
    logged = [protocol.decode_event(line) for line in (home / "restarted" / "events.jsonl").read_bytes().splitlines()]
    assert [event.code for event in logged if isinstance(event, protocol.Warn)] == codes(restarted)


def test_the_supervisor_gives_up_without_progress_and_exits_like_the_child(home: Path) -> None:
    result = finish(start_supervised(home, "hopeless", "6:crash", "6:crash", restarts=1))
    assert result.code == -signal.SIGSEGV or sys.platform == "win32"
    assert codes(result)[-1] == "run.gave_up"
    assert result.events_of(protocol.Warn)[-1].params["step"] == 4


def test_a_permanent_failure_is_not_restarted(home: Path) -> None:
    result = finish(start_supervised(home, "permanent", "2:other"))
    assert result.code == 1
    assert result.error.code == "internal"
    assert len(result.events_of(protocol.Hello)) == 1


def test_exit_code_0_without_a_final_event_is_a_failure(home: Path) -> None:
    result = finish(start_supervised(home, "exit-0", "6:exit"))
    assert result.code == 1
    assert codes(result) == ["run.vanished"]


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, the killer sets the exit code")
def test_a_killed_trainer_is_reported_and_not_restarted(home: Path) -> None:
    process = start_supervised(home, "killed")
    os.kill(read_hello(process).pid, signal.SIGKILL)  # like the OOM killer
    result = finish(process)
    assert result.code == -signal.SIGKILL
    assert codes(result) == ["failure.killed"]
    logged = [protocol.decode_event(line) for line in (home / "killed" / "events.jsonl").read_bytes().splitlines()]
    assert [event.code for event in logged if isinstance(event, protocol.Warn)] == ["failure.killed"]


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C cannot be sent to a single process on Windows")
@pytest.mark.parametrize("receiver", ["process", "terminal"])
def test_ctrl_c_stops_the_child_without_a_restart(home: Path, receiver: str) -> None:
    process = start_supervised(home, f"stopped {receiver}", steps=5000)
    hello = read_hello(process)
    assert hello.pid != process.pid
    (os.kill if receiver == "process" else os.killpg)(process.pid, signal.SIGINT)
    result = finish(process)
    assert result.code == 3
    assert result.events_of(protocol.Done)[0].reason == "stopped"
    assert not codes(result)
    assert not psutil.pid_exists(hello.pid)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C cannot be sent to a single process on Windows")
def test_ctrl_c_cancels_a_pending_restart(home: Path) -> None:
    process = start_supervised(home, "waiting", "2:crash", delay_s=60)
    read_hello(process, last=protocol.Warn)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert finish(process, timeout=20).code == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notifies a child of the death of its parent")
def test_the_child_of_a_killed_supervisor_saves_and_exits(home: Path) -> None:
    process = start_supervised(home, "orphan", steps=5000)
    child = psutil.Process(read_hello(process).pid)
    process.kill()
    process.communicate()
    child.wait(timeout=20)
    events = run_dir.tail_events(home / "orphan" / "events.jsonl")
    (done,) = [event for event in events if isinstance(event, protocol.Done)]
    resumed = run(home, "train", "--resume", "orphan", "--max-steps", str(done.steps + 1))
    assert (resumed.code, resumed.events_of(protocol.Hello)[0].resumed_from_step) == (0, done.steps)


def test_a_run_whose_processes_were_killed_can_be_resumed(home: Path) -> None:
    """Stands for a machine that was switched off."""
    process = start_supervised(home, "runs/orphan", steps=5000)
    child = psutil.Process(read_hello(process, last=protocol.Checkpoint).pid)
    child.kill()
    process.kill()
    process.communicate()
    child.wait(timeout=20)
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "runs"], capture_output=True, env=environment(home), cwd=home, check=True
    )
    assert "orphan was interrupted at step " in done.stdout.decode("utf-8")  # its lock names a process that has exited
    resumed = run(home, "train", "--resume", "latest", "--max-steps", "12")
    assert resumed.code == 0
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step >= 4


def test_control_stdin_disables_the_supervisor(home: Path) -> None:
    arguments = ["train", *ARGUMENTS, "--restarts", "3", "--data", str(home / "文本 text.txt"), "--run-dir", "window"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments, "--control", "stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=home,
    )
    hello = read_hello(process)
    # On Windows, a launcher of the virtual environment is the parent.
    assert hello.pid == process.pid or sys.platform == "win32"
    process.stdin.close()
    process.stdin = None
    finish(process)
