"""Supervisor of training in a terminal: a child process trains, and is restarted after a transient failure (see
`restart_policy.py`).

The child inherits the terminal, stdin, stdout and stderr, so its output and exit code are unchanged. It is a separate
process because an access violation or a lost device ends the process. The supervisor does not load torch: 25 MB. The
window and the elastic agent of `torchrun` restart runs themselves.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from trainer_core import error_codes, protocol, rank_info
from trainer_core.command_runner import OutputFormat
from trainer_core.messages import ExitCode, Value, terminal_language
from trainer_core.restart_policy import GiveUp, ProcessExit, RestartPolicy
from trainer_core.run_context import handle_termination
from trainer_core.run_plan import RunPlan
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process
from trainer_core.wire import EventDispatcher, FileSink, Sink, StreamSink

_POLL_S: Final = 0.1
_TAIL_BYTES: Final = 64 * 1024  # contains the final event
_SHOW_CURSOR: Final = "\x1b[?25h"
_LOST: Final = "ranks.lost"
_ELASTIC_RUN_VARIABLE: Final = "TORCHELASTIC_RUN_ID"


def is_enabled(plan: RunPlan) -> bool:
    """Whether this process supervises rather than trains."""
    under_launcher = _ELASTIC_RUN_VARIABLE in os.environ or rank_info.from_environment() is not None
    return (plan.config.restarts > 0 or plan.config.nproc_per_node > 1) and not under_launcher


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
    """Trains in child processes. `arguments`: those of `train`, without the command.

    `options`: arguments of every restart, such as `--control stdin`. `restarts`: at most; None: as configured.
    """

    def __init__(
        self,
        plan: RunPlan,
        arguments: Sequence[str],
        output: OutputFormat,
        options: Sequence[str] = (),
        restarts: int | None = None,
    ) -> None:
        self._run, self._output, self._options = plan.run, output, list(options)
        self._ranks, limit = plan.config.nproc_per_node, plan.config.restarts if restarts is None else restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_requested = False  # no more restarts
        self._final_code: int | None = None  # from the last event of several ranks
        self._restarts = RestartPolicy(limit, _last_checkpoint_step(plan.run))
        # Fixes what the child would otherwise determine again: the run's name, or which run is the latest.
        fixed: list[str] = []
        if not plan.run.exists():
            fixed = ["--run-dir", str(plan.run.path)]
        elif plan.checkpoint is None:
            fixed = ["--resume", str(plan.run.path)]
        self._arguments = [*arguments, *fixed]

    def run(self) -> int:
        """Run until a child ends for good. Returns its exit code; negative: a signal."""
        arguments, settings = self._arguments, _read(self._run.config)
        child_process.kill_children_on_exit()
        with handle_termination(self._on_signal):
            while True:
                ending = self._run_child(arguments)
                if not self._should_restart(ending):
                    if self._final_code is not None:
                        return self._final_code
                    return ending.exit_code or (ExitCode.FAILED if ending.exited_silently else ExitCode.FINISHED)
                newest = ["--resume", str(self._run.path)]  # also if the command line names a checkpoint
                if _read(self._run.config) != settings:  # stored by the child, with those of the command line
                    arguments = [*newest, "--output", self._output, *self._options]
                elif self._run.exists():
                    arguments = [*self._arguments, *newest]

    def prevent_restarts(self) -> None:
        """Do not restart the child: it was asked to stop. Safe in another thread."""
        self._stop_requested = True

    def kill(self) -> None:
        """Kill the child, for good. Safe in another thread."""
        self._stop_requested = True
        if (child := self._child) is not None:
            child_process.kill_child(child)

    def _run_child(self, arguments: Sequence[str]) -> ProcessExit:
        """Run one child to its end."""
        written = _size(self._run.events)
        arguments = ["train", *arguments, "--supervisor", str(os.getpid())]
        command = rank_info.launch_command("trainer_core", arguments, self._ranks)
        self._child = subprocess.Popen(command, env=child_process.environment())
        exit_code = self._child.wait()
        self._child = None
        if exit_code < 0 and sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(_SHOW_CURSOR)  # hidden by a progress bar
        started, last = _size(self._run.events) > written, read_final_event(self._run.events, written)
        error, step = last.code if isinstance(last, protocol.Error) else "", _last_checkpoint_step(self._run)
        if self._ranks > 1:
            self._final_code = None if last is None else _exit_code(last)
            if error == _LOST:  # the code of the agent is that of the lost rank
                error = ""
            elif last is not None:
                exit_code = _exit_code(last)
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

    def _warn(self, code: str, **params: Value) -> None:
        """Emit a warning to stdout and the run's events. Call while no child runs."""
        sink: Sink
        if self._output == "json":
            sink = StreamSink(os.fdopen(os.dup(1), "wb", buffering=0))
        else:
            from trainer_core.console.display import ConsoleSink  # 10 MB that most runs do not need

            sink = ConsoleSink(sys.stdout, terminal_language())
        wire = EventDispatcher(sink, FileSink(self._run.events))
        wire.emit(protocol.Warn(code=code, params=dict(params)))
        wire.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        # A terminal sends Ctrl+C to the child, too. A second SIGINT would end it at once, a second SIGTERM does not.
        if sys.platform != "win32" and self._child is not None:
            self._child.terminate()


def read_final_event(events: Path, since: int) -> protocol.Done | protocol.Error | None:
    """The final event of a trainer that wrote its events after byte `since`; None: it sent none."""
    # Include the preceding newline: the incomplete first line of the tail is skipped.
    tail = run_dir.tail_events(events, min(_TAIL_BYTES, _size(events) - since) + bool(since))
    return next((event for event in reversed([*tail]) if isinstance(event, protocol.Done | protocol.Error)), None)


def _exit_code(event: protocol.Done | protocol.Error) -> int:
    if isinstance(event, protocol.Error):
        return event.exit_code
    return ExitCode.STOPPED if event.reason in ("stopped", "parent_lost") else ExitCode.FINISHED


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _last_checkpoint_step(run: RunDir) -> int:
    good, _ = checkpoint_dir.latest_valid(run.checkpoints)
    info = checkpoint_dir.read_info(good) if good is not None else None
    return info.step if info is not None else 0
