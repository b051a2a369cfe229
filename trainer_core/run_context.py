"""Per-run context: emits events, receives commands.

Commands take effect only in `RunContext.poll`, which waits while paused and raises `StopRequested`. A thread
acknowledges them on arrival (`command_listener`), also during compilation or while a file is written.
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
from functools import partial
from types import FrameType
from typing import Final, Literal, NamedTuple

from trainer_core import STARTED_AT, protocol
from trainer_core.command_reader import CommandReader
from trainer_core.config import check_value, knobs
from trainer_core.messages import TraindeckError, Value
from trainer_core.progress import Reporter, StopRequested, Unit
from trainer_core.protocol import PauseReason, PhaseName
from trainer_core.wire import EventDispatcher

_PROGRESS_INTERVAL_S: Final = 0.25
_PAUSE_POLL_S: Final = 0.05
_WAIT_POLL_S: Final = 0.5  # conditions may be expensive to check
_COMMAND_POLL_S: Final = 0.1
_INTERRUPT_INTERVAL_S: Final = 2.0  # interrupted work needs time, and may have handled the exception as its own failure
_SHOW_CURSOR: Final = b"\x1b[?25h"
_EXIT_CODE_SIGINT: Final = 130  # exit code of shells for a program that Ctrl+C ended


class PauseState(NamedTuple):
    """Reason of a pause."""

    reason: PauseReason
    until: float | None = None  # seconds since the epoch; None: unknown


class RunContext(Reporter):
    """A `Reporter` that emits events and receives commands. Without `reader`, there are no commands."""

    def __init__(self, dispatcher: EventDispatcher, reader: CommandReader | None = None) -> None:
        self.dispatcher = dispatcher
        self.requests: list[protocol.Save | protocol.SampleCommand] = []  # to be served at the next step boundary
        self.live_settings: dict[str, Callable[[float], None]] = {}  # settings that `set` may change now
        # Handles `generate` and `interrupt` on arrival, on any thread; returns the reason if it refuses.
        self.generate_handler: Callable[[protocol.Generate | protocol.Interrupt], str] | None = None
        self.command_handler: Callable[[protocol.AnyCommand], None] | None = None  # receives all, on any thread
        self.pause_conditions: list[Callable[[], PauseState | None]] = []  # checked at every poll; Resume overrides one
        self.pause_contexts: list[Callable[[], AbstractContextManager[None]]] = []  # such as freeing memory
        self.on_wait: list[Callable[[], None]] = []  # called repeatedly during pauses and waits
        self._reader = reader
        self._stop_reason: Literal["stopped", "parent_lost"] | None = None
        self._interrupted_by_key = False
        self._parent_lost = False  # end of the parent process was detected
        self._pause_requested = False
        self._overridden: set[Callable[[], PauseState | None]] = set()  # pause conditions, each until it is false once
        self._pending_actions: list[Callable[[], None]] = []  # effects of commands, applied at the next poll
        self._command_lock = threading.Lock()
        self._interrupt_lock = threading.Lock()
        self._interruptible_thread: int | None = None  # thread whose work may be interrupted now
        self._phase: PhaseName | None = None
        self._phase_seconds: dict[str, float] = {}  # until `_phase_since`
        self._phase_since = STARTED_AT
        self._pause_state: PauseState | None = None  # of the phase while `paused`
        self.step: int | None = None  # latest, for messages
        self._last_progress: tuple[PhaseName, float] | None = None
        self._progress_start: dict[PhaseName, tuple[float, float]] = {}  # time and amount done at the start

    # --- events ----------------------------------------------------------------------------------

    def emit(self, event: protocol.AnyEvent) -> None:
        self.dispatcher.emit(event)

    def warn(self, code: str, **params: Value) -> None:
        self.dispatcher.emit(protocol.Warn(code=code, params=dict(params)))

    def set_phase(self, phase: PhaseName, step: int | None = None, pause_state: PauseState | None = None) -> None:
        """Emit a phase (or reason of a pause) if it has changed."""
        self.step = step
        if (phase, pause_state) != (self._phase, self._pause_state):
            self._count_phase_time()
            self._phase, self._pause_state = phase, pause_state
            reason, until = pause_state or (None, None)
            self.dispatcher.emit(protocol.Phase(phase=phase, step=step, reason=reason, until=until))

    def phase_seconds(self) -> dict[str, float]:
        """Seconds spent in each phase since the start of the process; `starting`: before the first phase."""
        self._count_phase_time()
        return dict(self._phase_seconds)

    def _count_phase_time(self) -> None:
        name, now = self._phase or "starting", time.monotonic()
        self._phase_seconds[name] = self._phase_seconds.get(name, 0.0) + now - self._phase_since
        self._phase_since = now

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        now = time.monotonic()
        last = self._last_progress
        finished = total is not None and done >= total
        if last is not None and last[0] == phase and now - last[1] < _PROGRESS_INTERVAL_S and not finished:
            return
        since, done_then = self._progress_start.setdefault(phase, (now, done))
        if done < done_then:  # the phase started again
            since, done_then = self._progress_start[phase] = (now, done)
        self._last_progress = (phase, now)
        eta = None
        if total is not None and done > done_then:  # at the mean rate of this phase
            eta = max(0.0, (total - done) * (now - since) / (done - done_then))
        self.dispatcher.emit(protocol.Progress(phase=phase, done=done, total=total, unit=unit, eta_s=eta))
        if finished:  # a repeated phase, such as evaluation, has its own rate
            self._progress_start.pop(phase, None)

    @contextlib.contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        with self._restore_phase():
            self.set_phase(name, self.step)
            yield

    @contextlib.contextmanager
    def on_pause(self, context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        self.pause_contexts.append(context)
        try:
            yield
        finally:
            self.pause_contexts.remove(context)

    @property
    def is_paused(self) -> bool:
        """Whether work is paused."""
        return self._phase == "paused"

    # --- stopping and pausing --------------------------------------------------------------------

    def request_stop(self, reason: Literal["stopped", "parent_lost"] = "stopped") -> None:
        """Stop at the next poll. Safe in a signal handler."""
        self._stop_reason = self._stop_reason or reason

    def poll(self) -> None:
        """Apply pending commands; waits while paused. Raises `StopRequested`."""
        self._process_commands()
        self.raise_if_stop_requested()
        if self._active_pause() is not None:
            self._pause()
        while self._pending_actions:
            self._pending_actions.pop(0)()

    def wait(self, reason: PauseReason, ready: Callable[[], bool]) -> None:
        """Wait in phase `paused` until `ready`, which is checked twice a second. Raises `StopRequested`."""
        if not ready():
            with self._restore_phase():
                self._wait_while_paused(lambda: None if ready() else PauseState(reason), _WAIT_POLL_S)

    def raise_if_stop_requested(self) -> None:
        """Raise `StopRequested` if a stop is pending, without anything else that `poll` does."""
        if self._stop_reason is not None:
            reason, self._stop_reason = self._stop_reason, None  # raised once: saving afterwards may poll
            self.set_phase("stopping", self.step)
            raise StopRequested(reason)

    def _active_pause(self) -> PauseState | None:
        """The reason to pause now, if any."""
        if self._pause_requested:
            return PauseState("requested")
        for condition in self.pause_conditions:
            state = condition()
            if state is None:
                self._overridden.discard(condition)
            elif condition not in self._overridden:
                return state
        return None

    def _pause(self) -> None:
        with self._restore_phase():
            self.set_phase("paused", self.step, self._active_pause())
            with contextlib.ExitStack() as stack:
                for context in self.pause_contexts:
                    stack.enter_context(context())
                self._wait_while_paused(self._active_pause, _PAUSE_POLL_S)

    def _wait_while_paused(self, condition: Callable[[], PauseState | None], interval_s: float) -> None:
        """Stay in `paused` while there is a reason."""
        while (state := condition()) is not None:
            self.set_phase("paused", self.step, state)
            next_check = time.monotonic() + interval_s
            while time.monotonic() < next_check:
                time.sleep(_PAUSE_POLL_S)
                for called in self.on_wait:
                    called()
                self._process_commands()
                self.raise_if_stop_requested()

    @contextlib.contextmanager
    def _restore_phase(self) -> Iterator[None]:
        """Emit the previous phase again after a wait. Nested waits emit nothing."""
        before = self._phase
        yield
        self._progress_start.clear()  # waiting does not count towards the rate
        if before not in (None, "paused"):
            self.set_phase(before, self.step)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Context for work that cannot poll and keeps nothing, such as compilation: a Stop interrupts it."""
        self._interruptible_thread = threading.get_ident()
        try:
            try:
                yield
            finally:
                self._end_interruptible()
        except Exception:  # whatever the interrupted work raised
            self._end_interruptible()
            if self._stop_reason is None:
                raise
        self.raise_if_stop_requested()

    def _interrupt_work(self) -> bool:
        """Raise `StopRequested` in the interruptible thread."""
        with self._interrupt_lock:
            if self._interruptible_thread is not None:
                _raise_in_thread(self._interruptible_thread, StopRequested)
            return self._interruptible_thread is not None

    def _end_interruptible(self) -> None:
        with self._interrupt_lock:
            if self._interruptible_thread is not None:
                _raise_in_thread(self._interruptible_thread, None)  # not in later work
            self._interruptible_thread = None

    # --- commands --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def command_listener(self) -> Iterator[None]:
        """Acknowledge commands on arrival, also while nothing polls."""
        ended = threading.Event()

        def listen() -> None:
            next_interrupt = 0.0
            while not ended.wait(_COMMAND_POLL_S):
                self._process_commands()
                now = time.monotonic()
                if self._stop_reason is not None and now >= next_interrupt and self._interrupt_work():
                    next_interrupt = now + _INTERRUPT_INTERVAL_S

        thread = threading.Thread(target=listen, name="commands", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _process_commands(self) -> None:
        if self._reader is None:
            return
        with self._command_lock:
            for command in self._reader.poll():
                if isinstance(command, bytes):
                    self.warn("command.unknown", command=command[:200].decode("utf-8", "replace"))
                    self._reject_line(command)
                else:
                    self._handle_command(command)
            if self._reader.closed and not self._parent_lost:
                self._parent_lost = True
                self.request_stop("parent_lost")

    def _reject_line(self, line: bytes) -> None:
        """Acknowledge an invalid command if it has an id."""
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict) and type(message.get("id")) is int:
                self._acknowledge(str(message.get("command", ""))[:40], message["id"], "no such command")

    def _acknowledge(self, command: str, number: int | None, refusal: str) -> None:
        """`refusal`: why the command is not accepted; empty if it is."""
        self.dispatcher.emit(protocol.Ack(command=command, id=number, accepted=not refusal, reason=refusal))

    def _handle_command(self, command: protocol.AnyCommand) -> None:
        if self.command_handler is not None:
            self.command_handler(command)
            return
        refusal = ""
        match command:
            case protocol.Stop():
                self.request_stop()
            case protocol.Pause():
                self._pause_requested = True
            case protocol.Resume():
                self._pause_requested = False
                self._overridden = {condition for condition in self.pause_conditions if condition() is not None}
            case protocol.Save() | protocol.SampleCommand():
                self._pending_actions.append(lambda: self.requests.append(command))
            case protocol.Set():
                change = self.live_settings.get(command.name)
                refusal = _invalid_reason(command) if change is not None else "it cannot be set now"
                if change is not None and not refusal:
                    self._pending_actions.append(partial(change, command.value))
            case protocol.Generate() | protocol.Interrupt():
                handler = self.generate_handler
                refusal = handler(command) if handler is not None else "only `generate` accepts it"
        self._acknowledge(str(command.__struct_config__.tag), command.id, refusal)

    def handle_signals(self) -> AbstractContextManager[None]:
        """Ctrl+C, termination or a closed terminal stops at the next step; a second Ctrl+C exits at once."""
        return handle_termination(self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Ctrl+C only: `timeout` repeats SIGTERM, and a closing terminal SIGHUP.
        by_key = number in (signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGINT))
        if by_key and self._interrupted_by_key:
            if os.name != "nt" and os.isatty(2):
                os.write(2, _SHOW_CURSOR)  # hidden by a progress bar
            os._exit(_EXIT_CODE_SIGINT)
        self._interrupted_by_key = self._interrupted_by_key or by_key
        self.request_stop()


@contextlib.contextmanager
def handle_termination(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` on Ctrl+C, termination or a closed terminal."""
    names = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")
    before = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    for number, earlier in before.items():
        if earlier != signal.SIG_IGN or number == signal.SIGINT:  # SIGHUP stays ignored under nohup
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _invalid_reason(command: protocol.Set) -> str:
    """Why a knob cannot have this value; empty if it can."""
    value = int(command.value) if command.value.is_integer() else command.value
    try:
        check_value(command.name, value, "set")
    except TraindeckError:
        return f"allowed: {knobs()[command.name].allowed()}"
    return ""


def _raise_in_thread(thread: int, kind: type[Exception] | None) -> None:
    """Raise an exception in another thread between two bytecodes; None: cancel one that is pending."""
    what = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
