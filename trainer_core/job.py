"""The frame around every long command: wire, session, log file, and how each ending becomes an exit code.

with Job(output, control) as job:   # claims stdout, catches Ctrl+C
    job.open_run(run)               # from here on: events.jsonl and log.txt
    …                               # work with job.session
sys.exit(job.exit_code)
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal, TextIO

from trainer_core import failures, files, protocol
from trainer_core.control import NoControl, StdinControl
from trainer_core.machine import console_close
from trainer_core.machine.quick_edit import without_quick_edit
from trainer_core.messages import ExitCode, TraindeckError, terminal_language
from trainer_core.report import StopRequested
from trainer_core.runs.run_dir import RunDir
from trainer_core.session import Session
from trainer_core.wire import FileSink, StreamSink, Wire, claim_stdout

if TYPE_CHECKING:
    from trainer_core.console.display import ConsoleSink

Output = Literal["json", "plain"]


def choose_output(wanted: str) -> Output:
    """`auto`: words on a terminal, JSON lines for a program."""
    if wanted == "auto":
        return "plain" if sys.stdout is not None and sys.stdout.isatty() else "json"
    return "plain" if wanted == "plain" else "json"


@dataclass(slots=True)
class _Tee(io.TextIOBase):
    """stderr, and the run's log file beside it."""

    stream: TextIO
    log: TextIO

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
        with contextlib.suppress(OSError, ValueError):
            self.log.write(text)
            self.log.flush()
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


class _Records(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A full disk: the end of the log is lost, and nothing else."""


@contextlib.contextmanager
def _closing(log: IO[str]) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk: the end of the log is lost, and nothing else
            log.close()


class Job:
    """One command from start to exit code. A failure becomes an `error` event; its traceback goes to the log."""

    def __init__(self, output: Output, stdin_commands: bool = False) -> None:
        self.exit_code: int = ExitCode.FINISHED
        self._sink = self._open_sink(output)
        self.wire = Wire(self._sink)
        self.session = Session(self.wire, StdinControl() if stdin_commands else NoControl())
        # Whoever read it may have left the commands open, or have sent none.
        self._sink.on_reader_gone(lambda: self.session.request_stop("parent_lost"))
        self._stack = contextlib.ExitStack()
        self._run: RunDir | None = None
        self._log: IO[str] | None = None
        self._file: FileSink | None = None

    @staticmethod
    def _open_sink(output: Output) -> StreamSink | ConsoleSink:
        if output == "json":
            return StreamSink(claim_stdout())
        from trainer_core.console.display import ConsoleSink

        return ConsoleSink(sys.stdout, terminal_language())

    def __enter__(self) -> Job:
        self._stack.enter_context(without_quick_edit())
        self._stack.enter_context(self.session.catching_interrupts())
        self._stack.enter_context(console_close.stopping_before_it(self.session.request_stop))
        self._stack.enter_context(self.session.listening())
        return self

    def open_run(self, run: RunDir) -> None:
        """Record events and whatever is printed into the run's folder. The caller holds its lock."""
        self._run = run
        with files.said_plainly(run.path):
            self._log = run.log.open("a", encoding="utf-8", errors="backslashreplace")
            run.events.touch()
        self._stack.enter_context(_closing(self._log))
        self._stack.enter_context(contextlib.redirect_stderr(_Tee(sys.stderr, self._log)))
        if sys.stdout is not None and isinstance(self._sink, StreamSink):
            self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        faulthandler.enable(self._log)
        self._stack.callback(faulthandler.disable)
        # A terminal is told in sentences; what programs read may as well have all of it.
        records = _Records(sys.stderr if isinstance(self._sink, StreamSink) else self._log)
        logging.basicConfig(handlers=[records], level=logging.WARNING, force=True)
        logging.getLogger("trainer_core").setLevel(logging.INFO)  # of our own, what only a log has room for
        self._file = FileSink(run.events)
        self.wire.add(self._file)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        try:
            handled = error is None or self._end(error)
            if self._file is not None and self._file.problem is not None and self._run is not None:
                reason = self._file.problem.strerror or "?"
                self.session.warn("events.not_written", path=str(self._run.events), reason=reason)
        finally:
            self.wire.close()
            self._stack.close()
        return handled

    def _end(self, error: BaseException) -> bool:
        """Word an exception; False lets `SystemExit` and the like through."""
        if isinstance(error, StopRequested):
            self.exit_code = ExitCode.STOPPED
            return True
        if not isinstance(error, Exception):
            return False
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide what happened
                traceback.print_exception(error, file=self._log)
        told = error if isinstance(error, TraindeckError) else self._name(error)
        self.exit_code = told.exit_code
        self.session.enter("failed")
        self.wire.emit(
            protocol.Error(code=told.code, params=dict(told.params), detail=told.detail, exit_code=self.exit_code)
        )
        return True

    def _name(self, error: Exception) -> TraindeckError:
        """The catalogue's name for an exception that nobody named where it was raised."""
        text = f"{type(error).__name__}: {error}"
        found = failures.of_exception(error)
        if found is not None and found.code == "disk.full":
            full = files.disk_full(self._run.path if self._run else Path.cwd(), 0)
            full.detail = text
            return full
        if found is not None:
            return TraindeckError(found.code, detail=text, **{"step": self.session.step or 0, **found.params})
        log = str(self._run.log) if self._run else "stderr"
        if self._run is None:
            traceback.print_exception(error)
        return TraindeckError("internal", detail=text, kind=type(error).__name__, log=log)
