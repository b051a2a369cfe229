"""Watches over a training in a terminal: the work is done by a child process, and started again after a failure
that passes (see `restarts.py`).

The child has our stdin, stdout and stderr, so nothing is passed on and its output and exit code are what one would see
without us. It is a process of its own because an access violation or a lost device ends the process that it happens in.
We load no torch: 25 MB. The window restarts by itself, and the elastic agent of `torchrun` too: neither needs this.

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

from trainer_core import children, failures, place, presets, protocol
from trainer_core.config import Layer, knobs, resolve, to_dict
from trainer_core.job import Output
from trainer_core.messages import ExitCode, TraindeckError, Value, terminal_language
from trainer_core.plans import Plan
from trainer_core.restarts import Ending, GiveUp, Restarts
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.wire import FileSink, Sink, StreamSink, Wire

_POLL_S: Final = 0.1
_FIRST_BYTES: Final = 64 * 1024  # in which a trainer says hello
_LAST_BYTES: Final = 64 * 1024  # in which it says why it ended
_SHOW_CURSOR: Final = "\x1b[?25h"
_ELASTIC: Final = "TORCHELASTIC_RUN_ID"


def is_wanted(plan: Plan) -> bool:
    """Whether this process is to watch, rather than train."""
    return plan.config.restarts > 0 and _ELASTIC not in os.environ and place.given() is None


def run(plan: Plan, arguments: Sequence[str], output: Output) -> int:
    """Train in a child process until it ends for good. Returns its exit code; negative: a signal.

    `arguments`: of `train`, without the word.
    """
    return _Supervisor(plan, arguments, output).run()


def end_as(code: int) -> NoReturn:
    """End this process as the child ended, by the same signal too."""
    if code < 0 and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has dumped its own
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # the first process of a container is not killed by a signal of its own
    sys.exit(code - 2**32 if code >= 2**31 else code)  # 0xC0000005 is an int to Windows, and a negative one


class _Supervisor:
    def __init__(self, plan: Plan, arguments: Sequence[str], output: Output) -> None:
        self._plan, self._arguments, self._output = plan, list(arguments), output
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False  # somebody wants it to end: no restart any more
        self._restarts = Restarts(plan.config.restarts, _saved_step(plan.run))

    def run(self) -> int:
        arguments = [*self._arguments, *self._where()]
        children.end_with_us()
        with self._catching_signals():
            while True:
                ending = self._train(arguments)
                if not self._goes_on_after(ending):
                    return ending.exit_code or (ExitCode.FAILED if ending.vanished else ExitCode.FINISHED)
                if self._plan.run.exists():
                    arguments = ["--resume", str(self._plan.run.path), *self._changes(), "--output", self._output]

    def _where(self) -> list[str]:
        """What the child must not find out anew: a name with the time in it, which run is the latest."""
        path = str(self._plan.run.path)
        if not self._plan.run.exists():
            return ["--run-dir", path]
        return ["--resume", path] if self._plan.checkpoint is None else []

    def _train(self, arguments: Sequence[str]) -> Ending:
        """One child from start to end."""
        written = _size(self._plan.run.events)
        command = [sys.executable, *children.interpreter_flags(), "-m", "trainer_core", "train", *arguments]
        # A group of its own: Ctrl+C in a terminal reaches us alone, and the child through us, once. On Windows it
        # reaches both, and is passed on by nobody.
        self._child = subprocess.Popen(
            [*command, "--supervisor", str(os.getpid())], env=children.environment(), process_group=0
        )
        exit_code = self._child.wait()
        self._child = None
        if exit_code < 0 and sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(_SHOW_CURSOR)  # a progress bar had hidden it
        began, last = last_words(self._plan.run.events, written)
        error, vanished = last.code if isinstance(last, protocol.Error) else "", began and last is None
        return Ending(exit_code, error=error, vanished=vanished, began=began, step=_saved_step(self._plan.run))

    def _goes_on_after(self, ending: Ending) -> bool:
        """Whether to start again; says so, and waits."""
        decision = None if self._stopped else self._restarts.after(ending)
        died_of = failures.of_exit_code(ending.exit_code)
        if died_of is not None and not ending.error and died_of.code not in self._asked_for():
            self._say(died_of.code)  # nobody else can: an exit code is all that there is
        elif died_of is None and ending.vanished and not self._stopped:
            self._say("run.vanished", exit_code=ending.exit_code)
        if decision is None:
            return False
        if isinstance(decision, GiveUp):
            self._say("run.gave_up", reason=decision.reason, attempts=decision.attempts, step=ending.step)
            return False
        wait = round(decision.wait_s)
        told: dict[str, Value] = {"reason": decision.reason, "attempt": decision.attempt, "of": decision.of}
        self._say("run.restarting", **told, seconds=wait, step=ending.step)
        until = time.monotonic() + decision.wait_s
        while not self._stopped and time.monotonic() < until:
            time.sleep(_POLL_S)
        return not self._stopped

    def _asked_for(self) -> tuple[str, ...]:
        """Ends that are no news to who has pressed Ctrl+C."""
        return ("failure.interrupted", "failure.terminated") if self._stopped else ()

    def _changes(self) -> list[str]:
        """Flags for what the command line changed in a run that did not live to write it down; usually none.

        The files of `--config` are not read again: they may have been edited for the next run.
        """
        path = self._plan.run.config
        try:
            written = to_dict(resolve([Layer(str(path), presets.read_mapping(path))]))
        except TraindeckError:
            return []
        wanted = to_dict(self._plan.config)
        return [flag for name in knobs() if wanted[name] != written[name] for flag in _flags(name, wanted[name])]

    def _say(self, code: str, **params: Value) -> None:
        """Tell whoever reads the child's stdout, and the run's events. No child is there: nobody else writes."""
        sink: Sink
        if self._output == "json":
            sink = StreamSink(os.fdopen(os.dup(1), "wb", buffering=0))
        else:
            from trainer_core.console.display import ConsoleSink  # 10 MB, that hardly any run needs here

            sink = ConsoleSink(sys.stdout, terminal_language())
        wire = Wire(sink, FileSink(self._plan.run.events))
        wire.emit(protocol.Warn(code=code, params=dict(params)))
        wire.close()

    # --- signals -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        names = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")
        handlers = {getattr(signal, name): self._on_signal for name in names if hasattr(signal, name)}
        if sys.platform != "win32":
            handlers[signal.SIGTSTP] = self._on_suspend
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if before[number] != signal.SIG_IGN or number == signal.SIGINT:  # SIGHUP under nohup stays ignored
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if sys.platform != "win32" and self._child is not None:
            self._child.send_signal(number)

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl+Z: the child's whole group stands still with us, and goes on with us."""
        if sys.platform != "win32" and self._child is not None:
            os.killpg(self._child.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(self._child.pid, signal.SIGCONT)


def last_words(events: Path, since: int) -> tuple[bool, protocol.Done | protocol.Error | None]:
    """Of the trainer that wrote what follows byte `since`: whether it said hello, and how it says that it ended."""
    try:
        with events.open("rb") as file:
            file.seek(since)
            began = any(isinstance(event, protocol.Hello) for event in map(_event, file.readlines(_FIRST_BYTES)))
    except OSError:
        return False, None
    # One byte more: the newline before it, for the rest of the line that the tail begins in is passed over.
    tail = run_dir.tail_events(events, min(_LAST_BYTES, _size(events) - since) + bool(since))
    ends = [event for event in tail if isinstance(event, protocol.Done | protocol.Error)]
    return began, ends[-1] if ends else None


def _event(line: bytes) -> protocol.AnyEvent | None:
    try:
        return protocol.decode_event(line)
    except protocol.ProtocolError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _saved_step(run: RunDir) -> int:
    good, _ = checkpoint_dir.latest_good(run.checkpoints)
    info = checkpoint_dir.read_info(good) if good is not None else None
    return info.step if info is not None else 0


def _flags(name: str, value: Any) -> list[str]:
    knob = knobs()[name]
    if knob.kind == "bool":
        return [knob.flag if value else knob.flag.replace("--", "--no-", 1)]
    return [f"{knob.flag}={item}" for item in (value if knob.kind == "list" else [value])]
