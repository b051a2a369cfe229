"""Supervisor of training in a terminal: a child process trains, and is restarted after a transient failure (see
`restart_policy.py`).

The child inherits stdin, stdout and stderr, so its output and exit code are unchanged. It is a separate process because
an access violation or a lost device ends the process. The supervisor does not load torch: 25 MB. The window and the
elastic agent of `torchrun` restart runs themselves.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from trainer_core import error_codes, presets, protocol, rank_info
from trainer_core.command_runner import OutputFormat
from trainer_core.config import ConfigLayer, knobs, resolve, to_dict
from trainer_core.messages import ExitCode, TraindeckError, Value, terminal_language
from trainer_core.restart_policy import GiveUp, ProcessExit, RestartPolicy
from trainer_core.run_plan import RunPlan
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process
from trainer_core.wire import EventDispatcher, FileSink, Sink, StreamSink

_POLL_S: Final = 0.1
_HEAD_BYTES: Final = 64 * 1024  # contains `hello`
_TAIL_BYTES: Final = 64 * 1024  # contains the final event
_SHOW_CURSOR: Final = "\x1b[?25h"
_ELASTIC_RUN_VARIABLE: Final = "TORCHELASTIC_RUN_ID"


def is_enabled(plan: RunPlan) -> bool:
    """Whether this process supervises rather than trains."""
    under_launcher = _ELASTIC_RUN_VARIABLE in os.environ or rank_info.from_environment() is not None
    return plan.config.restarts > 0 and not under_launcher


def exit_like_child(code: int) -> NoReturn:
    """End this process as the child ended, with the same signal if there was one."""
    if code < 0 and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has already dumped core
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # the first process of a container is not killed by its own signal
    sys.exit(code - 2**32 if code >= 2**31 else code)  # 0xC0000005 is a negative int on Windows


class Supervisor:
    """Trains in child processes. `arguments`: those of `train`, without the command."""

    def __init__(self, plan: RunPlan, arguments: Sequence[str], output: OutputFormat) -> None:
        self._plan, self._arguments, self._output = plan, list(arguments), output
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_requested = False  # no more restarts
        self._restarts = RestartPolicy(plan.config.restarts, _last_checkpoint_step(plan.run))

    def run(self) -> int:
        """Run until a child ends for good. Returns its exit code; negative: a signal."""
        arguments = [*self._arguments, *self._run_arguments()]
        child_process.kill_children_on_exit()
        with self._handle_signals():
            while True:
                ending = self._run_child(arguments)
                if not self._should_restart(ending):
                    return ending.exit_code or (ExitCode.FAILED if ending.exited_silently else ExitCode.FINISHED)
                if self._plan.run.exists():
                    arguments = ["--resume", str(self._plan.run.path), *self._changed_flags(), "--output", self._output]

    def _run_arguments(self) -> list[str]:
        """Arguments that fix what the child would otherwise determine again: the run's name, or which run is the
        latest.
        """
        path = str(self._plan.run.path)
        if not self._plan.run.exists():
            return ["--run-dir", path]
        return ["--resume", path] if self._plan.checkpoint is None else []

    def _run_child(self, arguments: Sequence[str]) -> ProcessExit:
        """Run one child to its end."""
        written = _size(self._plan.run.events)
        command = [sys.executable, *child_process.interpreter_flags(), "-m", "trainer_core", "train", *arguments]
        # Own process group: Ctrl+C in a terminal reaches only this process, which forwards it once. On Windows it
        # reaches both, and is not forwarded.
        self._child = subprocess.Popen(
            [*command, "--supervisor", str(os.getpid())], env=child_process.environment(), process_group=0
        )
        exit_code = self._child.wait()
        self._child = None
        if exit_code < 0 and sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(_SHOW_CURSOR)  # hidden by a progress bar
        started, last = read_exit_events(self._plan.run.events, written)
        error, step = last.code if isinstance(last, protocol.Error) else "", _last_checkpoint_step(self._plan.run)
        return ProcessExit(exit_code, error=error, exited_silently=started and last is None, started=started, step=step)

    def _should_restart(self, ending: ProcessExit) -> bool:
        """Decide on a restart, report it and wait."""
        decision = None if self._stop_requested else self._restarts.decide(ending)
        cause = error_codes.classify_exit_code(ending.exit_code)
        expected = ("failure.interrupted", "failure.terminated") if self._stop_requested else ()  # after Ctrl+C
        if cause is not None and not ending.error and cause.code not in expected:
            self._warn(cause.code)  # no event could be sent: only the exit code is known
        elif cause is None and ending.exited_silently and not self._stop_requested:
            self._warn("run.vanished", exit_code=ending.exit_code)
        if decision is None:
            return False
        if isinstance(decision, GiveUp):
            self._warn("run.gave_up", reason=decision.reason, attempts=decision.attempts, step=ending.step)
            return False
        params: dict[str, Value] = {"reason": decision.reason, "attempt": decision.attempt, "of": decision.limit}
        self._warn("run.restarting", **params, seconds=round(decision.delay_s), step=decision.step)
        until = time.monotonic() + decision.delay_s
        while not self._stop_requested and time.monotonic() < until:
            time.sleep(_POLL_S)
        return not self._stop_requested

    def _changed_flags(self) -> list[str]:
        """Flags for settings of the command line that the run has not stored yet; usually none.

        Files of `--config` are not read again: they may have been edited for the next run.
        """
        path = self._plan.run.config
        try:
            written = to_dict(resolve([ConfigLayer(str(path), presets.read_mapping(path))]))
        except TraindeckError:
            return []
        wanted = to_dict(self._plan.config)
        return [flag for name in knobs() if wanted[name] != written[name] for flag in _to_flags(name, wanted[name])]

    def _warn(self, code: str, **params: Value) -> None:
        """Emit a warning to stdout and the run's events. Call while no child runs."""
        sink: Sink
        if self._output == "json":
            sink = StreamSink(os.fdopen(os.dup(1), "wb", buffering=0))
        else:
            from trainer_core.console.display import ConsoleSink  # 10 MB that most runs do not need

            sink = ConsoleSink(sys.stdout, terminal_language())
        wire = EventDispatcher(sink, FileSink(self._plan.run.events))
        wire.emit(protocol.Warn(code=code, params=dict(params)))
        wire.close()

    # --- signals -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        names = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")
        handlers = {getattr(signal, name): self._on_signal for name in names if hasattr(signal, name)}
        if sys.platform != "win32":
            handlers[signal.SIGTSTP] = self._on_suspend
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if before[number] != signal.SIG_IGN or number == signal.SIGINT:  # SIGHUP stays ignored under nohup
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        if sys.platform != "win32" and self._child is not None:
            self._child.send_signal(number)

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl+Z: stop the child's process group, and continue it afterwards."""
        if sys.platform != "win32" and self._child is not None:
            os.killpg(self._child.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(self._child.pid, signal.SIGCONT)


def read_exit_events(events: Path, since: int) -> tuple[bool, protocol.Done | protocol.Error | None]:
    """Return whether a trainer sent `hello`, and its final event, from its events after byte `since`."""
    try:
        with events.open("rb") as file:
            file.seek(since)
            started = any(
                isinstance(event, protocol.Hello) for event in map(_decode_event, file.readlines(_HEAD_BYTES))
            )
    except OSError:
        return False, None
    # Include the preceding newline: the incomplete first line of the tail is skipped.
    tail = run_dir.tail_events(events, min(_TAIL_BYTES, _size(events) - since) + bool(since))
    ends = [event for event in tail if isinstance(event, protocol.Done | protocol.Error)]
    return started, ends[-1] if ends else None


def _decode_event(line: bytes) -> protocol.AnyEvent | None:
    try:
        return protocol.decode_event(line)
    except protocol.ProtocolError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_checkpoint_step(run: RunDir) -> int:
    good, _ = checkpoint_dir.latest_valid(run.checkpoints)
    info = checkpoint_dir.read_info(good) if good is not None else None
    return info.step if info is not None else 0


def _to_flags(name: str, value: Any) -> list[str]:
    knob = knobs()[name]
    if knob.kind == "bool":
        return [knob.flag if value else knob.flag.replace("--", "--no-", 1)]
    return [f"{knob.flag}={item}" for item in (value if knob.kind == "list" else [value])]
