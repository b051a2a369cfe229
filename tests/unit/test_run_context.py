"""The run context: commands, pauses, stops, progress, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recording_sink import RecordingSink
from tests.waiting import wait_until
from trainer_core import STARTED_AT, protocol
from trainer_core.command_reader import CommandReader
from trainer_core.progress import StopRequested
from trainer_core.run_context import PauseState, RunContext
from trainer_core.wire import EventDispatcher

ROOT = Path(__file__).resolve().parents[2]


class PipedContext:
    """A run context that reads commands from a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.sink = RecordingSink()
        self.context = RunContext(EventDispatcher(self.sink), CommandReader(self.read))

    def send(self, *commands: protocol.AnyCommand | bytes) -> None:
        for command in commands:
            os.write(self.write, command if isinstance(command, bytes) else protocol.encode(command))


@pytest.fixture
def pipe() -> PipedContext:
    return PipedContext()


def test_polling_without_commands_does_not_block(pipe: PipedContext) -> None:
    start = time.monotonic()
    for _ in range(1000):
        pipe.context.poll()
    assert time.monotonic() - start < 5  # a wait of 10 ms each would take twice as long


def test_every_command_is_acknowledged_with_its_id(pipe: PipedContext) -> None:
    pipe.send(
        protocol.Save(id=1), protocol.SampleCommand(id=2, prompt="早上"), protocol.Set(id=3, name="log_steps", value=5)
    )
    pipe.context.poll()
    assert [(ack.command, ack.id, ack.accepted) for ack in pipe.sink.events_of(protocol.Ack)] == [
        ("save", 1, True),
        ("sample", 2, True),
        ("set", 3, False),
    ]
    assert pipe.context.requests == [protocol.Save(id=1), protocol.SampleCommand(id=2, prompt="早上")]


def test_set_changes_a_live_setting(pipe: PipedContext) -> None:
    values: list[float] = []
    pipe.context.live_settings["log_steps"] = values.append
    pipe.send(protocol.Set(name="log_steps", value=5), protocol.Set(name="log_steps", value=-1))
    pipe.context.poll()
    assert values == [5]
    assert [ack.accepted for ack in pipe.sink.events_of(protocol.Ack)] == [True, False]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("perf_steps", 0, ""),
        ("log_steps", 0, "allowed: a whole number >= 1 and <= 1000000"),
        ("log_steps", 1.5, "allowed: a whole number >= 1 and <= 1000000"),
        ("hardware_interval_s", 0.5, ""),
        ("hardware_interval_s", 0.01, "allowed: a number >= 0.1 and <= 3600"),
        ("flops_steps", 1, "it cannot be set now"),
    ],
)
def test_set_accepts_the_values_of_the_knob(pipe: PipedContext, name: Any, value: float, reason: str) -> None:
    values: list[float] = []
    for knob in ("perf_steps", "log_steps", "hardware_interval_s"):
        pipe.context.live_settings[knob] = values.append
    pipe.send(protocol.Set(name=name, value=value))
    pipe.context.poll()
    (ack,) = pipe.sink.events_of(protocol.Ack)
    assert (ack.accepted, ack.reason) == (not reason, reason)
    assert values == ([] if reason else [value])


def test_an_invalid_command_with_an_id_is_acknowledged(pipe: PipedContext) -> None:
    pipe.send(
        b'{"command":"set","id":3,"name":"learning_rate","value":1}\n',
        b'{"command":"dance","id":4}\n',
        b'{"command":"dance"}\n',
        b"[1]\n",
    )
    pipe.context.poll()
    acks = [(ack.command, ack.id, ack.accepted) for ack in pipe.sink.events_of(protocol.Ack)]
    assert acks == [("set", 3, False), ("dance", 4, False)]
    assert len(pipe.sink.events_of(protocol.Warn)) == 4


def test_a_command_may_arrive_in_two_parts(pipe: PipedContext) -> None:
    line = protocol.encode(protocol.Stop(id=7))
    pipe.send(line[:9])
    pipe.context.poll()
    assert not pipe.sink.events
    pipe.send(line[9:])
    with pytest.raises(StopRequested):
        pipe.context.poll()


def test_an_invalid_command_is_reported_and_ignored(pipe: PipedContext) -> None:
    pipe.send(b'{"command":"dance"}\n', b"\xff\xfe not json\n", protocol.Save(id=1))
    pipe.context.poll()
    assert [warning.code for warning in pipe.sink.events_of(protocol.Warn)] == ["command.unknown"] * 2
    assert pipe.sink.events_of(protocol.Ack)[0].id == 1


def test_a_stop_is_raised_once_at_a_poll(pipe: PipedContext) -> None:
    pipe.send(protocol.Stop(id=1))
    with pytest.raises(StopRequested) as stop:
        pipe.context.poll()
    assert stop.value.reason == "stopped"
    pipe.context.poll()  # raised only once, because saving polls too
    assert pipe.sink.events_of(protocol.Phase)[-1].phase == "stopping"


def test_the_end_of_input_is_a_lost_parent(pipe: PipedContext) -> None:
    os.close(pipe.write)
    with pytest.raises(StopRequested) as stop:
        pipe.context.poll()
    assert stop.value.reason == "parent_lost"
    pipe.context.poll()  # raised only once, because saving polls too


def test_a_pause_waits_for_resume_and_restores_the_phase(pipe: PipedContext) -> None:
    pipe.context.set_phase("training", 5)
    pipe.send(protocol.Pause(id=1))
    threading.Timer(0.3, pipe.send, [protocol.Resume(id=2)]).start()
    start = time.monotonic()
    pipe.context.poll()
    assert time.monotonic() - start >= 0.25
    assert [event.phase for event in pipe.sink.events_of(protocol.Phase)] == ["training", "paused", "training"]


def test_the_listener_acknowledges_commands_without_a_poll(pipe: PipedContext) -> None:
    with pipe.context.command_listener():
        pipe.send(protocol.Save(id=1), protocol.Stop(id=2))
        wait_until(lambda: len(pipe.sink.events_of(protocol.Ack)) == 2)
    assert not pipe.context.requests, "executed at the next poll"
    with pytest.raises(StopRequested):
        pipe.context.poll()


def test_a_stop_interrupts_work_that_does_not_poll(pipe: PipedContext) -> None:
    def work() -> None:
        try:
            while True:
                time.sleep(0.001)
        except Exception as error:
            raise ValueError("the work treats the interruption as its own error") from error

    with pipe.context.command_listener():
        pipe.send(protocol.Stop(id=1))
        with pytest.raises(StopRequested) as stop, pipe.context.interruptible():
            work()
        time.sleep(0.3)  # later work is not interrupted
    assert stop.value.reason == "stopped"


def test_interruptible_work_raises_its_own_errors_and_is_not_interrupted_by_other_commands(pipe: PipedContext) -> None:
    with pytest.raises(ValueError, match="mine"), pipe.context.interruptible():
        raise ValueError("mine")
    with pipe.context.interruptible():
        pass
    with pipe.context.command_listener(), pipe.context.interruptible():
        pipe.send(protocol.Pause(), protocol.Resume())
        wait_until(lambda: len(pipe.sink.events_of(protocol.Ack)) == 2)


def test_a_pause_condition_pauses_with_its_reason(pipe: PipedContext) -> None:
    pipe.context.set_phase("training", 5)
    reasons = [PauseState("schedule", 1000.0), PauseState("schedule", 1000.0), PauseState("schedule", 2000.0), None]
    pipe.context.pause_conditions.append(lambda: reasons.pop(0) if reasons else None)
    pipe.context.poll()
    phases = [(event.phase, event.reason, event.until) for event in pipe.sink.events_of(protocol.Phase)]
    assert phases == [
        ("training", None, None),
        ("paused", "schedule", 1000.0),
        ("paused", "schedule", 2000.0),
        ("training", None, None),
    ]


def test_resume_overrides_a_pause_condition_until_the_condition_has_been_false(pipe: PipedContext) -> None:
    state: list[PauseState | None] = [PauseState("schedule")]
    pipe.context.set_phase("training", 5)
    pipe.context.pause_conditions.append(lambda: state[0])
    threading.Timer(0.2, pipe.send, [protocol.Resume()]).start()
    pipe.context.poll()  # ended by the resume
    pipe.context.poll()
    state[0] = None
    pipe.context.poll()
    state[0] = PauseState("schedule")
    threading.Timer(0.2, state.__setitem__, [0, None]).start()
    pipe.context.poll()
    assert [event.phase for event in pipe.sink.events_of(protocol.Phase)] == [
        "training",
        "paused",
        "training",
        "paused",
        "training",
    ]


def test_pause_contexts_are_entered_and_receive_a_stop(pipe: PipedContext) -> None:
    calls: list[str] = []

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        calls.append("entered")
        try:
            yield
        except StopRequested:
            calls.append("stopped")
            raise
        calls.append("exited")

    pipe.context.pause_contexts.append(context)
    pipe.context.poll()
    assert calls == []
    pipe.send(protocol.Pause())
    threading.Timer(0.2, pipe.send, [protocol.Resume()]).start()
    pipe.context.poll()
    assert calls == ["entered", "exited"]
    pipe.send(protocol.Pause())
    threading.Timer(0.2, pipe.send, [protocol.Stop()]).start()
    with pytest.raises(StopRequested):
        pipe.context.poll()
    assert calls == ["entered", "exited", "entered", "stopped"]


def test_wait_pauses_until_ready_or_stopped(pipe: PipedContext) -> None:
    pipe.context.set_phase("saving", 5)
    ready = [False, False, True]
    pipe.context.wait("disk_full", lambda: ready.pop(0))
    pipe.context.wait("disk_full", lambda: True)
    phases = [(event.phase, event.reason) for event in pipe.sink.events_of(protocol.Phase)]
    assert phases == [("saving", None), ("paused", "disk_full"), ("saving", None)]
    pipe.send(protocol.Stop())
    with pytest.raises(StopRequested):
        pipe.context.wait("disk_full", lambda: False)


def test_progress_is_throttled_except_at_the_end(pipe: PipedContext) -> None:
    for done in range(1, 2001):
        pipe.context.progress("preparing", done, 2000, "documents")
    events = pipe.sink.events_of(protocol.Progress)
    assert len(events) < 20
    assert events[-1].done == 2000


def test_a_repeated_phase_has_its_own_remaining_time(pipe: PipedContext) -> None:
    for done in range(1, 11):
        pipe.context.progress("evaluating", done, 10, "batches")
    time.sleep(1)  # training continues until the next evaluation
    pipe.context.progress("evaluating", 1, 10, "batches")
    time.sleep(0.3)
    pipe.context.progress("evaluating", 5, 10, "batches")
    eta_s = pipe.sink.events_of(protocol.Progress)[-1].eta_s
    assert eta_s is not None
    assert eta_s < 1  # about 0.4 s; 1.6 s if counted from the first evaluation


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send Ctrl+C to one child")
def test_a_first_ctrl_c_stops_at_the_next_poll_and_a_second_one_immediately() -> None:
    program = (
        "import time\n"
        "from trainer_core.run_context import RunContext\n"
        "from trainer_core.wire import EventDispatcher\n"
        "context = RunContext(EventDispatcher())\n"
        "with context.handle_signals():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    try: context.poll()\n"
        "    except Exception: print('stopped', flush=True)\n"
        "    time.sleep(20)\n"
    )
    controller, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=terminal, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(2)
    assert process.stdout.readline() == b"stopped\n"
    process.send_signal(2)
    assert process.wait(10) == 130
    assert os.read(controller, 100) == b"\x1b[?25h", "the cursor is shown again"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_repeated_sigterm_or_sighup_does_not_exit_immediately() -> None:
    """`timeout` signals the process and its group; a closing terminal sends SIGHUP twice."""
    program = (
        "import os, signal\n"
        "from trainer_core.run_context import RunContext\n"
        "from trainer_core.wire import EventDispatcher\n"
        "context = RunContext(EventDispatcher())\n"
        "with context.handle_signals():\n"
        "    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):\n"
        "        os.kill(os.getpid(), number)\n"
        "    try: context.poll()\n"
        "    except Exception: print('stopped', flush=True)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, check=False)
    assert (result.returncode, result.stdout) == (0, b"stopped\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_an_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        context = RunContext(EventDispatcher())
        with context.handle_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            context.poll()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_unreadable_input_is_a_lost_parent(pipe: PipedContext) -> None:
    os.close(pipe.write)
    os.close(pipe.read)
    with pytest.raises(StopRequested) as stop:
        pipe.context.poll()
    assert stop.value.reason == "parent_lost"


def test_the_seconds_of_each_phase_add_up_to_those_since_the_start(pipe: PipedContext) -> None:
    pipe.context.set_phase("loading")
    pipe.context.set_phase("preparing")
    time.sleep(0.05)
    pipe.context.set_phase("loading")
    seconds = pipe.context.phase_seconds()
    assert list(seconds) == ["starting", "loading", "preparing"]
    # Windows' clock advances in steps of 16 ms
    assert 0.03 <= seconds["preparing"] < seconds["starting"]
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - STARTED_AT, abs=0.02)
