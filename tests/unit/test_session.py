"""Commands: each is acknowledged, taken between steps, and never waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kept import Kept
from trainer_core import protocol
from trainer_core.command_reader import CommandReader
from trainer_core.progress import StopRequested
from trainer_core.run_context import PauseState, RunContext
from trainer_core.wire import EventDispatcher

ROOT = Path(__file__).resolve().parents[2]


class Pipe:
    """A session that listens to a real pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.kept = Kept()
        self.session = RunContext(EventDispatcher(self.kept), CommandReader(self.read))

    def send(self, *commands: protocol.AnyCommand | bytes) -> None:
        for command in commands:
            os.write(self.write, command if isinstance(command, bytes) else protocol.encode(command))


def until(said: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not said():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def test_with_nothing_to_read_polling_returns_at_once(pipe: Pipe) -> None:
    since = time.monotonic()
    for _ in range(1000):
        pipe.session.poll()
    assert time.monotonic() - since < 5  # a wait of 10 ms each would take twice as long


def test_every_command_is_acknowledged_with_its_id(pipe: Pipe) -> None:
    pipe.send(
        protocol.Save(id=1), protocol.SampleCommand(id=2, prompt="早上"), protocol.Set(id=3, name="log_steps", value=5)
    )
    pipe.session.poll()
    assert [(ack.command, ack.id, ack.accepted) for ack in pipe.kept.of(protocol.Ack)] == [
        ("save", 1, True),
        ("sample", 2, True),
        ("set", 3, False),
    ]
    wishes = pipe.session.requests.pop_all()
    assert wishes.save
    assert wishes.samples[0].prompt == "早上"
    assert not pipe.session.requests.pop_all().save, "a wish is granted once"


def test_what_may_change_live_is_changed_by_set(pipe: Pipe) -> None:
    seen: list[float] = []
    pipe.session.live_settings["log_steps"] = seen.append
    pipe.send(protocol.Set(name="log_steps", value=5), protocol.Set(name="log_steps", value=-1))
    pipe.session.poll()
    assert seen == [5]
    assert [ack.accepted for ack in pipe.kept.of(protocol.Ack)] == [True, False]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("perf_steps", 0, ""),
        ("sample_steps", 0, ""),
        ("log_steps", 0, "allowed: a whole number >= 1 and <= 1000000"),
        ("log_steps", 1.5, "allowed: a whole number >= 1 and <= 1000000"),
        ("hardware_interval_s", 0.5, ""),
        ("hardware_interval_s", 0.01, "allowed: a number >= 0.1 and <= 3600"),
        ("flops_steps", 1, "it cannot be set now"),
    ],
)
def test_what_may_be_set_is_what_the_knob_may_be(pipe: Pipe, name: Any, value: float, reason: str) -> None:
    seen: list[float] = []
    for knob in ("perf_steps", "sample_steps", "log_steps", "hardware_interval_s"):
        pipe.session.live_settings[knob] = seen.append
    pipe.send(protocol.Set(name=name, value=value))
    pipe.session.poll()
    (ack,) = pipe.kept.of(protocol.Ack)
    assert (ack.accepted, ack.reason) == (not reason, reason)
    assert seen == ([] if reason else [value])


def test_who_gives_an_id_is_answered_also_where_it_is_no_command(pipe: Pipe) -> None:
    pipe.send(
        b'{"command":"set","id":3,"name":"learning_rate","value":1}\n',
        b'{"command":"dance","id":4}\n',
        b'{"command":"dance"}\n',
        b"[1]\n",
    )
    pipe.session.poll()
    answers = [(ack.command, ack.id, ack.accepted) for ack in pipe.kept.of(protocol.Ack)]
    assert answers == [("set", 3, False), ("dance", 4, False)]
    assert len(pipe.kept.of(protocol.Warn)) == 4


def test_a_command_in_two_halves_is_one_command(pipe: Pipe) -> None:
    line = protocol.encode(protocol.Stop(id=7))
    pipe.send(line[:9])
    pipe.session.poll()
    assert not pipe.kept.events
    pipe.send(line[9:])
    with pytest.raises(StopRequested):
        pipe.session.poll()


def test_a_line_that_is_no_command_is_said_and_ignored(pipe: Pipe) -> None:
    pipe.send(b'{"command":"dance"}\n', b"\xff\xfe not json\n", protocol.Save(id=1))
    pipe.session.poll()
    assert [warning.code for warning in pipe.kept.of(protocol.Warn)] == ["command.unknown"] * 2
    assert pipe.kept.of(protocol.Ack)[0].id == 1


def test_stop_is_raised_where_work_may_end_and_only_once(pipe: Pipe) -> None:
    pipe.send(protocol.Stop(id=1))
    with pytest.raises(StopRequested) as stop:
        pipe.session.poll()
    assert stop.value.reason == "stopped"
    pipe.session.poll()  # saving may poll in peace
    assert pipe.kept.of(protocol.Phase)[-1].phase == "stopping"


def test_the_end_of_input_means_that_the_parent_is_gone(pipe: Pipe) -> None:
    os.close(pipe.write)
    with pytest.raises(StopRequested) as stop:
        pipe.session.poll()
    assert stop.value.reason == "parent_lost"


def test_a_pause_holds_the_work_until_resume_and_then_names_what_goes_on(pipe: Pipe) -> None:
    pipe.session.set_phase("training", 5)
    pipe.send(protocol.Pause(id=1))
    threading.Timer(0.3, pipe.send, [protocol.Resume(id=2)]).start()
    since = time.monotonic()
    pipe.session.poll()
    assert time.monotonic() - since >= 0.25
    assert [phase.phase for phase in pipe.kept.of(protocol.Phase)] == ["training", "paused", "training"]


def test_stop_ends_a_pause(pipe: Pipe) -> None:
    pipe.send(protocol.Pause())
    threading.Timer(0.2, pipe.send, [protocol.Stop()]).start()
    with pytest.raises(StopRequested):
        pipe.session.poll()


def test_commands_are_acknowledged_while_the_work_polls_nothing(pipe: Pipe) -> None:
    with pipe.session.command_listener():
        pipe.send(protocol.Save(id=1), protocol.Stop(id=2))
        until(lambda: len(pipe.kept.of(protocol.Ack)) == 2)
    assert not pipe.session.requests.save, "what they ask for is done at the next poll"
    with pytest.raises(StopRequested):
        pipe.session.poll()


def test_a_stop_breaks_off_work_that_polls_nothing_and_what_it_makes_of_it(pipe: Pipe) -> None:
    def work() -> None:
        try:
            while True:
                time.sleep(0.001)
        except Exception as error:
            raise ValueError("the work takes it for a failure of its own") from error

    with pipe.session.command_listener():
        pipe.send(protocol.Stop(id=1))
        with pytest.raises(StopRequested) as stop, pipe.session.interruptible():
            work()
        time.sleep(0.3)  # what comes after it is left alone
    assert stop.value.reason == "stopped"


def test_a_failure_of_breakable_work_is_its_own(pipe: Pipe) -> None:
    with pytest.raises(ValueError, match="mine"), pipe.session.interruptible():
        raise ValueError("mine")
    with pipe.session.interruptible():
        pass
    with pipe.session.command_listener(), pipe.session.interruptible():
        pipe.send(protocol.Pause(), protocol.Resume())
        until(lambda: len(pipe.kept.of(protocol.Ack)) == 2)


def test_a_lost_parent_is_said_once_so_that_saving_may_poll(pipe: Pipe) -> None:
    os.close(pipe.write)
    with pytest.raises(StopRequested):
        pipe.session.poll()
    pipe.session.poll()


def test_work_waits_as_long_as_there_is_a_reason_and_says_which(pipe: Pipe) -> None:
    pipe.session.set_phase("training", 5)
    reasons = [PauseState("schedule", 1000.0), PauseState("schedule", 1000.0), PauseState("schedule", 2000.0), None]
    pipe.session.pause_conditions.append(lambda: reasons.pop(0) if reasons else None)
    pipe.session.poll()
    said = [(event.phase, event.reason, event.until) for event in pipe.kept.of(protocol.Phase)]
    assert said == [
        ("training", None, None),
        ("paused", "schedule", 1000.0),
        ("paused", "schedule", 2000.0),
        ("training", None, None),
    ]


def test_a_resume_overrules_a_reason_until_it_has_gone_once(pipe: Pipe) -> None:
    why: list[PauseState | None] = [PauseState("schedule")]
    pipe.session.set_phase("training", 5)
    pipe.session.pause_conditions.append(lambda: why[0])
    threading.Timer(0.2, pipe.send, [protocol.Resume()]).start()
    pipe.session.poll()  # ends by the resume alone
    pipe.session.poll()
    why[0] = None
    pipe.session.poll()
    why[0] = PauseState("schedule")
    threading.Timer(0.2, why.__setitem__, [0, None]).start()
    pipe.session.poll()
    assert [event.phase for event in pipe.kept.of(protocol.Phase)] == [
        "training",
        "paused",
        "training",
        "paused",
        "training",
    ]


def test_a_pause_is_wrapped_and_a_stop_comes_out_through_the_wrapping(pipe: Pipe) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        seen.append("parked")
        try:
            yield
        except StopRequested:
            seen.append("stopped")
            raise
        seen.append("back")

    pipe.session.pause_contexts.append(around)
    pipe.session.poll()
    assert seen == []
    pipe.send(protocol.Pause())
    threading.Timer(0.2, pipe.send, [protocol.Resume()]).start()
    pipe.session.poll()
    assert seen == ["parked", "back"]
    pipe.send(protocol.Pause())
    threading.Timer(0.2, pipe.send, [protocol.Stop()]).start()
    with pytest.raises(StopRequested):
        pipe.session.poll()
    assert seen == ["parked", "back", "parked", "stopped"]


def test_work_can_wait_for_what_no_command_brings(pipe: Pipe) -> None:
    pipe.session.set_phase("saving", 5)
    answers = [False, False, True]
    pipe.session.wait("disk_full", lambda: answers.pop(0))
    pipe.session.wait("disk_full", lambda: True)
    said = [(event.phase, event.reason) for event in pipe.kept.of(protocol.Phase)]
    assert said == [("saving", None), ("paused", "disk_full"), ("saving", None)]
    pipe.send(protocol.Stop())
    with pytest.raises(StopRequested):
        pipe.session.wait("disk_full", lambda: False)


def test_progress_comes_a_few_times_a_second_and_at_the_end(pipe: Pipe) -> None:
    for done in range(1, 2001):
        pipe.session.progress("preparing", done, 2000, "documents")
    events = pipe.kept.of(protocol.Progress)
    assert len(events) < 20
    assert events[-1].done == 2000


def test_what_was_done_before_and_begins_again_is_not_timed_from_its_first_beginning(pipe: Pipe) -> None:
    for done in range(1, 11):
        pipe.session.progress("evaluating", done, 10, "batches")
    time.sleep(1)  # an evaluation has ended; training goes on, and the next one begins
    pipe.session.progress("evaluating", 1, 10, "batches")
    time.sleep(0.3)
    pipe.session.progress("evaluating", 5, 10, "batches")
    left = pipe.kept.of(protocol.Progress)[-1].eta_s
    assert left is not None
    assert left < 1  # some 0.4 s; from the first beginning on, 1.6 s


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C cannot be sent to one child there")
def test_a_first_ctrl_c_stops_politely_and_a_second_one_at_once() -> None:
    program = (
        "import time\n"
        "from trainer_core.run_context import RunContext\n"
        "from trainer_core.wire import EventDispatcher\n"
        "session = RunContext(EventDispatcher())\n"
        "with session.handle_signals():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    try: session.poll()\n"
        "    except Exception: print('polite', flush=True)\n"
        "    time.sleep(20)\n"
    )
    seen, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=terminal, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(2)
    assert process.stdout.readline() == b"polite\n"
    process.send_signal(2)
    assert process.wait(10) == 130
    assert os.read(seen, 100) == b"\x1b[?25h", "a progress bar's hidden cursor is shown again"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals there")
def test_a_polite_termination_said_twice_is_still_polite() -> None:
    """`timeout` says it to the process and to its group; a closed terminal sends SIGHUP twice."""
    program = (
        "import os, signal\n"
        "from trainer_core.run_context import RunContext\n"
        "from trainer_core.wire import EventDispatcher\n"
        "session = RunContext(EventDispatcher())\n"
        "with session.handle_signals():\n"
        "    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):\n"
        "        os.kill(os.getpid(), number)\n"
        "    try: session.poll()\n"
        "    except Exception: print('polite', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"polite\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals there")
def test_a_closing_terminal_is_still_ignored_where_it_was_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        session = RunContext(EventDispatcher())
        with session.handle_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            session.poll()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_input_that_can_no_longer_be_read_means_that_the_parent_is_gone(pipe: Pipe) -> None:
    os.close(pipe.write)
    os.close(pipe.read)
    with pytest.raises(StopRequested) as stop:
        pipe.session.poll()
    assert stop.value.reason == "parent_lost"
