"""Context of every long command: events, run context, log file, exit code.

with CommandContext(output, control) as job:   # claims stdout, handles Ctrl+C
    job.open_run(run)                          # from here on: events.jsonl and log.txt
    ...                                        # work with job.run_context
sys.exit(job.exit_code)
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal, TextIO

from trainer_core import error_codes, protocol
from trainer_core.command_reader import CommandReader
from trainer_core.messages import ExitCode, TraindeckError, terminal_language
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir, decode_events
from trainer_core.system import files, windows_console
from trainer_core.wire import EventDispatcher, FileSink, StreamSink, claim_stdout

if TYPE_CHECKING:
    from trainer_core.console.display import ConsoleSink

OutputFormat = Literal["json", "plain"]


def choose_output(wanted: str) -> OutputFormat:
    """`auto`: text on a terminal, JSON lines for a program."""
    if wanted == "auto":
        return "plain" if sys.stdout is not None and sys.stdout.isatty() else "json"
    return "plain" if wanted == "plain" else "json"


@dataclass(slots=True)
class _Tee(io.TextIOBase):
    """Writes to stderr and to the run's log file."""

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


class CommandContext:
    """One command from start to exit code. A failure becomes an `error` event; its traceback goes to the log."""

    def __init__(self, output: OutputFormat, stdin_commands: bool = False) -> None:
        self.exit_code: int = ExitCode.FINISHED
        self._sink = self._open_sink(output)
        self.dispatcher = EventDispatcher(self._sink)
        self.run_context = RunContext(self.dispatcher, CommandReader() if stdin_commands else None)
        # The reader of events may be gone while commands remain possible.
        self._sink.on_disconnect(lambda: self.run_context.request_stop("parent_lost"))
        self._stack = contextlib.ExitStack()
        self._run: RunDir | None = None
        self._log: IO[str] | None = None
        self._file: FileSink | None = None

    @staticmethod
    def _open_sink(output: OutputFormat) -> StreamSink | ConsoleSink:
        if output == "json":
            return StreamSink(claim_stdout())
        from trainer_core.console.display import ConsoleSink

        return ConsoleSink(sys.stdout, terminal_language())

    def __enter__(self) -> CommandContext:
        self._stack.enter_context(windows_console.disable_quick_edit())
        self._stack.enter_context(self.run_context.handle_signals())
        self._stack.enter_context(windows_console.stop_on_close(self.run_context.request_stop))
        self._stack.enter_context(self.run_context.command_listener())
        return self

    def open_run(self, run: RunDir) -> None:
        """Record events and printed output in the run directory. The caller holds its lock."""
        self._run = run
        with files.translate_os_errors(run.path):
            self._log = run.log.open("a", encoding="utf-8", errors="backslashreplace")
            run.events.touch()
        self._stack.callback(self._close_log, self._log)
        self._stack.enter_context(contextlib.redirect_stderr(_Tee(sys.stderr, self._log)))
        if sys.stdout is not None and isinstance(self._sink, StreamSink):
            self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        faulthandler.enable(self._log)
        self._stack.callback(faulthandler.disable)
        # On a terminal, libraries' messages go to the log only.
        stream = sys.stderr if isinstance(self._sink, StreamSink) else self._log
        logging.basicConfig(stream=stream, level=logging.WARNING, force=True)
        logging.raiseExceptions = False  # on a full disk only the end of the log is lost
        logging.getLogger("trainer_core").setLevel(logging.INFO)  # INFO messages are for the log only
        self._file = FileSink(run.events)
        self.dispatcher.add_sink(self._file)

    def relay(self, line: bytes) -> None:
        """Output an event of another process, encoded and with its newline. A line that is none is discarded."""
        if isinstance(self._sink, StreamSink):
            self._sink.relay(line)
        else:
            for event in decode_events([line]):
                self._sink.write(event)

    @staticmethod
    def _close_log(log: IO[str]) -> None:
        with contextlib.suppress(OSError):  # on a full disk only the end of the log is lost
            log.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        try:
            handled = error is None or self._handle_exception(error)
            if self._file is not None and self._file.problem is not None and self._run is not None:
                reason = self._file.problem.strerror or "?"
                self.run_context.warn("events.not_written", path=str(self._run.events), reason=reason)
        finally:
            self.dispatcher.close()
            self._stack.close()
        return handled

    def _handle_exception(self, error: BaseException) -> bool:
        """Convert an exception to an error event; False lets `SystemExit` and the like through."""
        if isinstance(error, StopRequested):
            self.exit_code = ExitCode.STOPPED
            return True
        if not isinstance(error, Exception):
            return False
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide the failure
                traceback.print_exception(error, file=self._log)
        failure = error if isinstance(error, TraindeckError) else self._classify(error)
        code, params, self.exit_code = failure.code, dict(failure.params), failure.exit_code
        self.run_context.set_phase("failed")
        self.run_context.emit(protocol.Error(code=code, params=params, detail=failure.detail, exit_code=self.exit_code))
        return True

    def _classify(self, error: Exception) -> TraindeckError:
        """Classify an exception that has no code."""
        text = f"{type(error).__name__}: {error}"
        found = error_codes.classify_exception(error)
        if found is not None and found.code == "disk.full":
            return files.disk_full_error(self._run.path if self._run else Path.cwd(), 0, error)
        if found is not None:
            return TraindeckError(found.code, detail=text, **{"step": self.run_context.step or 0, **found.params})
        log = str(self._run.log) if self._run else "stderr"
        if self._run is None:
            traceback.print_exception(error)
        return TraindeckError("internal", detail=text, kind=type(error).__name__, log=log)
