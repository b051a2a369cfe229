"""What a command line run is to long work: its reporter, its wire and its ear.

`Session.poll` is the one door by which commands take effect: it waits here while paused, and raises
`StopRequested`. A thread acknowledges them as they come in (`listening`), also while the work is in a
compiler or writes a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Final, Literal, NamedTuple

from trainer_core import protocol
from trainer_core.config import check_value, knobs
from trainer_core.control import Control, NoControl
from trainer_core.messages import TraindeckError, Value
from trainer_core.protocol import PauseReason, PhaseName
from trainer_core.report import StopRequested, Unit
from trainer_core.wire import Wire

_PROGRESS_INTERVAL_S: Final = 0.25
_PAUSE_POLL_S: Final = 0.05
_WAIT_POLL_S: Final = 0.5  # what is waited for may cost something to look at
_LISTEN_EVERY_S: Final = 0.1
_BREAK_EVERY_S: Final = 2.0  # what is broken off needs some time for it, and may have taken it for a failure of its own
_SHOW_CURSOR: Final = b"\x1b[?25h"
_INTERRUPTED: Final = 130  # what shells give a program ended by Ctrl+C


@dataclass(slots=True)
class Wishes:
    """What was asked for and is to be done at the next step boundary."""

    save: bool = False
    samples: list[protocol.SampleNow] = field(default_factory=list)

    def take(self) -> Wishes:
        """What is wished so far; the list is empty again afterwards."""
        taken = Wishes(self.save, self.samples)
        self.save, self.samples = False, []
        return taken


class Hold(NamedTuple):
    """Why work is to wait just now."""

    reason: PauseReason
    until: float | None = None  # seconds since the epoch; None: nobody knows


class Session:
    """A `Reporter` that sends events and reads commands."""

    def __init__(self, wire: Wire, control: Control | None = None) -> None:
        self.wire = wire
        self.wishes = Wishes()
        self.settable: dict[str, Callable[[float], None]] = {}  # what `set` may change just now
        # Obeys `generate` and `interrupt` as they come in, on any thread; gives the reason where it refuses.
        self.writer: Callable[[protocol.Generate | protocol.Interrupt], str] | None = None
        self.holds: list[Callable[[], Hold | None]] = []  # asked at every poll; a person's Resume overrules one
        self.around_pauses: list[Callable[[], AbstractContextManager[None]]] = []  # such as giving memory back
        self._control = control or NoControl()
        self._stop: Literal["stopped", "parent_lost"] | None = None
        self._asked_by_key = False
        self._lost = False  # the parent's end was heard
        self._paused = False
        self._overruled: set[Callable[[], Hold | None]] = set()  # until they have had no reason for once
        self._heard: list[Callable[[], None]] = []  # what commands do at the next poll
        self._listening = threading.Lock()
        self._breaking = threading.Lock()
        self._breakable: int | None = None  # the thread whose work may be broken off just now
        self._phase: PhaseName | None = None
        self._hold: Hold | None = None  # of the phase, while it is `paused`
        self.step: int | None = None  # the newest one, for messages
        self._last_progress: tuple[PhaseName, float] | None = None
        self._progress_from: dict[PhaseName, tuple[float, float]] = {}  # when, and how much was done then

    # --- speaking --------------------------------------------------------------------------------

    def emit(self, event: protocol.AnyEvent) -> None:
        self.wire.emit(event)

    def warn(self, code: str, **params: Value) -> None:
        self.wire.emit(protocol.Warn(code=code, params=dict(params)))

    def enter(self, phase: PhaseName, step: int | None = None, hold: Hold | None = None) -> None:
        """Say what is done now (or why it waits), if it is something else than before."""
        self.step = step
        if (phase, hold) != (self._phase, self._hold):
            self._phase, self._hold = phase, hold
            reason, until = hold or (None, None)
            self.wire.emit(protocol.Phase(phase=phase, step=step, reason=reason, until=until))

    def trying(self, path: str) -> None:
        if path in ("compile", "cuda_graphs"):  # the others take no time that one would notice
            self.enter("compiling")

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        now = time.monotonic()
        last = self._last_progress
        finished = total is not None and done >= total
        if last is not None and last[0] == phase and now - last[1] < _PROGRESS_INTERVAL_S and not finished:
            return
        since, done_then = self._progress_from.setdefault(phase, (now, done))
        if done < done_then:  # the phase began again
            since, done_then = self._progress_from[phase] = (now, done)
        self._last_progress = (phase, now)
        eta = None
        if total is not None and done > done_then:  # at the mean pace of this phase so far
            eta = max(0.0, (total - done) * (now - since) / (done - done_then))
        self.wire.emit(protocol.Progress(phase=phase, done=done, total=total, unit=unit, eta_s=eta))
        if finished:  # should it be done again, as evaluations are, that has a pace of its own
            self._progress_from.pop(phase, None)

    @property
    def resting(self) -> bool:
        """Whether the work waits."""
        return self._phase == "paused"

    # --- listening -------------------------------------------------------------------------------

    def request_stop(self, reason: Literal["stopped", "parent_lost"] = "stopped") -> None:
        """Stop at the next poll. Safe in a signal handler."""
        self._stop = self._stop or reason

    def poll(self) -> None:
        """Take what waits; wait here while paused. Raises `StopRequested`."""
        self._listen()
        self.stop_if_asked()
        if self._held() is not None:
            self._pause()
        while self._heard:
            self._heard.pop(0)()

    def wait(self, reason: PauseReason, ready: Callable[[], bool], until: float | None = None) -> None:
        """Wait in phase `paused` for something that no command brings: until `ready`, which is asked twice a second.
        Raises `StopRequested`."""
        if not ready():
            with self._interrupting():
                self._stay(lambda: None if ready() else Hold(reason, until), _WAIT_POLL_S)

    def stop_if_asked(self) -> None:
        """What `poll` does about a Stop, and nothing else."""
        if self._stop is not None:
            reason, self._stop = self._stop, None  # said once: what follows (saving) may poll in peace
            self.enter("stopping", self.step)
            raise StopRequested(reason)

    def _held(self) -> Hold | None:
        """Why work is to wait just now, if it is."""
        if self._paused:
            return Hold("asked")
        for hold in self.holds:
            why = hold()
            if why is None:
                self._overruled.discard(hold)
            elif hold not in self._overruled:
                return why
        return None

    def _pause(self) -> None:
        with self._interrupting():
            self.enter("paused", self.step, self._held())
            with contextlib.ExitStack() as stack:
                for around in self.around_pauses:
                    stack.enter_context(around())
                self._stay(self._held, _PAUSE_POLL_S)

    def _stay(self, why: Callable[[], Hold | None], every_s: float) -> None:
        """Stay in `paused` as long as there is a reason."""
        while (hold := why()) is not None:
            self.enter("paused", self.step, hold)
            look = time.monotonic() + every_s
            while time.monotonic() < look:
                time.sleep(_PAUSE_POLL_S)
                self._listen()
                self.stop_if_asked()

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Around a wait: afterwards what was done before is said again. A wait within a wait says nothing."""
        before = self._phase
        yield
        self._progress_from.clear()  # the wait is no part of the pace
        if before not in (None, "paused"):
            self.enter(before, self.step)

    @contextlib.contextmanager
    def breakable(self) -> Iterator[None]:
        """Around work that cannot poll, such as a compiler's, and of which nothing is kept: a Stop breaks it off."""
        self._breakable = threading.get_ident()
        try:
            try:
                yield
            finally:
                self._spare()
        except Exception:  # whatever the work made of being broken off
            self._spare()
            if self._stop is None:
                raise
        self.stop_if_asked()

    def _break(self) -> bool:
        """Raise `StopRequested` in the thread whose work may be broken off."""
        with self._breaking:
            if self._breakable is not None:
                _raise_in(self._breakable, StopRequested)
            return self._breakable is not None

    def _spare(self) -> None:
        with self._breaking:
            if self._breakable is not None:
                _raise_in(self._breakable, None)  # not what comes after it
            self._breakable = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Acknowledge commands as they come in, also where nothing polls for a while."""
        over = threading.Event()

        def listen() -> None:
            broken = -_BREAK_EVERY_S
            while not over.wait(_LISTEN_EVERY_S):
                self._listen()
                if self._stop is not None and time.monotonic() - broken >= _BREAK_EVERY_S and self._break():
                    broken = time.monotonic()

        thread = threading.Thread(target=listen, name="commands", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _listen(self) -> None:
        with self._listening:
            for command in self._control.poll():
                if isinstance(command, bytes):
                    self.warn("command.unknown", command=command[:200].decode("utf-8", "replace"))
                    self._refuse(command)
                else:
                    self._take(command)
            if self._control.closed and not self._lost:
                self._lost = True
                self.request_stop("parent_lost")

    def _refuse(self, line: bytes) -> None:
        """Who gave an id waits for the answer, to what is no command either."""
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict) and type(said.get("id")) is int:
                name = str(said.get("command", ""))[:40]
                self.wire.emit(protocol.Ack(command=name, id=said["id"], accepted=False, reason="no such command"))

    def _take(self, command: protocol.AnyCommand) -> None:
        accepted, reason = True, ""
        match command:
            case protocol.Stop():
                self.request_stop()
            case protocol.Pause():
                self._paused = True
            case protocol.Resume():
                self._paused = False
                self._overruled = {hold for hold in self.holds if hold() is not None}
            case protocol.Save():
                self._heard.append(lambda: setattr(self.wishes, "save", True))
            case protocol.SampleNow():
                self._heard.append(lambda: self.wishes.samples.append(command))
            case protocol.Set():
                change = self.settable.get(command.name)
                reason = _refusal(command) if change is not None else "it cannot be set now"
                accepted = not reason
                if change is not None and accepted:
                    self._heard.append(partial(change, command.value))
            case protocol.Generate() | protocol.Interrupt():
                reason = self.writer(command) if self.writer is not None else "only `generate` does this"
                accepted = not reason
        name = str(command.__struct_config__.tag)
        self.wire.emit(protocol.Ack(command=name, id=command.id, accepted=accepted, reason=reason))

    @contextlib.contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """Ctrl+C, a polite termination or a closed terminal stops at the next step; a second Ctrl+C exits at once."""
        names = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")
        signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in signals}
        for number, handler in before.items():
            if handler != signal.SIG_IGN or number == signal.SIGINT:  # SIGHUP under nohup stays ignored
                signal.signal(number, self._interrupted)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        # Only a key: `timeout` says SIGTERM, and a terminal that closes says SIGHUP, twice for one wish.
        by_key = number in (signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT))
        if by_key and self._asked_by_key:
            if os.name != "nt" and os.isatty(2):
                os.write(2, _SHOW_CURSOR)  # a progress bar has hidden it
            os._exit(_INTERRUPTED)
        self._asked_by_key = self._asked_by_key or by_key
        self.request_stop()


def _refusal(command: protocol.Set) -> str:
    """Why a knob cannot have this value; empty where it can."""
    value = int(command.value) if command.value.is_integer() else command.value
    try:
        check_value(command.name, value, "set")
    except TraindeckError:
        return f"allowed: {knobs()[command.name].allowed()}"
    return ""


def _raise_in(thread: int, kind: type[Exception] | None) -> None:
    """Raise an exception in another thread, between two of its instructions; None: take back what is not raised yet."""
    what = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
