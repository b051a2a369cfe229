"""The trainer as a child process that emits events and receives commands, without blocking the window.

Each turn of the event loop processes lines for at most 8 ms, so that a flood of events cannot freeze the window.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal

from trainer_core import protocol
from trainer_core.protocol import AnyCommand
from trainer_core.runs import run_dir
from trainer_core.system import child_process, program_files

SLICE_BUDGET_S: Final = 0.008
"""Processing time per turn of the event loop."""
OUTPUT_TAIL_LINES: Final = 40
_MAX_LINE_BYTES: Final = 1024 * 1024  # longer lines are cut
_MAX_OUTPUT_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How a process ended. `exit_code`: the signal number after a crash on POSIX, -1 if it failed to start."""

    exit_code: int
    crashed: bool
    output_tail: list[str]
    error_event: protocol.Error | None = None
    failed_to_start: bool = False


def console_interpreter() -> str:
    """The interpreter for the trainer: `python.exe` beside `pythonw.exe`, which has no standard streams."""
    own = Path(sys.executable)
    if own.stem.lower() != "pythonw":
        return sys.executable
    console = own.with_name(f"python{own.suffix}")
    return str(console) if console.is_file() else sys.executable


def trainer_command() -> list[str]:
    """The command with unbuffered output, no modules of the current folder, and UTF-8 instead of the code page."""
    return [console_interpreter(), "-u", "-P", "-X", "utf8", "-m", "trainer_core"]


class TrainerProcess(QObject):
    """Runs one trainer at a time. `command` (program and first arguments) replaces the trainer in tests."""

    event_received = Signal(object)  # protocol.AnyEvent
    output_received = Signal(str)  # a line that is not an event
    protocol_incompatible = Signal(object)  # (major, minor) of a newer protocol
    finished = Signal(object)  # ProcessOutcome, after the last event

    def __init__(self, parent: QObject | None = None, *, command: Sequence[str] | None = None) -> None:
        super().__init__(parent)
        self._command = list(command) if command else None
        self._process: QProcess | None = None
        # A zero timer fires once per turn of the event loop, between painting and input.
        self._timer = QTimer(self)
        self._timer.setInterval(0)
        self._timer.timeout.connect(self._process_pending)
        self._reset()

    def _reset(self) -> None:
        self._cut_lines = set[QProcess.ProcessChannel]()  # channels that are in the rest of a line that was too long
        self._output_tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
        self._error_event: protocol.Error | None = None
        self._exit_status: tuple[int, bool] | None = None
        self._next_id = 1
        self._kill_requested = False

    # --- starting ------------------------------------------------------------------------------------

    def start(self, arguments: Sequence[str]) -> bool:
        """Start `… ARGUMENTS --output json --control stdin`. False while one is running.

        Returns at once; a program that cannot be started ends in `finished` with `failed_to_start`.
        """
        if self.is_running:
            return False
        self._reset()
        program, *first = self._command or trainer_command()
        process = self._process = QProcess(self)
        process.setProgram(program)
        process.setArguments([*first, *arguments, "--output", "json", "--control", "stdin"])
        process.setProcessEnvironment(process_environment())
        folder = run_dir.home()  # which relative paths refer to
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        process.setWorkingDirectory(str(folder if folder.is_dir() else program_files.ROOT))
        process.readyReadStandardOutput.connect(self._schedule_processing)
        process.readyReadStandardError.connect(self._schedule_processing)
        process.errorOccurred.connect(self._on_error)
        process.finished.connect(self._on_finished)
        # No console window appears: without a console of its own, Qt gives the child CREATE_NO_WINDOW.
        process.start()
        return True

    @property
    def is_running(self) -> bool:
        """From `start` until `finished` is emitted."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """PID of the started process; on Windows the venv launcher, whose child is the trainer."""
        return int(self._process.processId()) or None if self._process else None

    @property
    def arguments(self) -> list[str]:
        """The command line, program first."""
        return [self._process.program(), *self._process.arguments()] if self._process else []

    # --- commands --------------------------------------------------------------------------------------

    def send(self, command: AnyCommand) -> bool:
        """Send a command with an id that its acknowledgement repeats. False if the process cannot receive it."""
        process = self._process
        if process is None or self._exit_status is not None or not process.isWritable():
            return False
        if command.id is None:
            command.id, self._next_id = self._next_id, self._next_id + 1
        return process.write(protocol.encode(command)) >= 0

    def close_input(self) -> None:
        """Close the input; the trainer then saves and exits."""
        if self._process is not None:
            self._process.closeWriteChannel()

    def kill(self) -> None:
        """Kill the process and its descendants (child of the launcher, loader workers). Further calls do nothing."""
        if self._process is not None and self._exit_status is None and not self._kill_requested:
            self._kill_requested = True
            if self.pid is not None:
                child_process.kill_tree(self.pid)
            self._process.kill()

    def shutdown(self, grace_s: float = 5.0) -> None:
        """Close the input, wait up to `grace_s` seconds, then kill. Blocks; for the end of the program."""
        process = self._process
        if process is not None:
            process.closeWriteChannel()
            if not process.waitForFinished(round(1000 * grace_s)):
                self.kill()
                process.waitForFinished(2000)

    # --- process signals --------------------------------------------------------------------------

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart and self._process is not None:
            self._output_tail.append(self._process.errorString())
            outcome = ProcessOutcome(-1, True, list(self._output_tail), failed_to_start=True)
            # On Windows this slot runs inside `start`, whose caller must return first.
            QTimer.singleShot(0, self, lambda: self._emit_finished(outcome))

    def _on_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._exit_status = (exit_code, status is QProcess.ExitStatus.CrashExit)
        self._schedule_processing()

    def _schedule_processing(self) -> None:
        if not self._timer.isActive():
            self._timer.start()

    def _process_pending(self) -> None:
        """Process waiting lines until none are left or the time is up; the timer calls again."""
        deadline, channel = time.perf_counter() + SLICE_BUDGET_S, QProcess.ProcessChannel
        while time.perf_counter() < deadline:
            # Connected slots run here and count towards the time.
            if (event := self._read_line(channel.StandardOutput)).strip():
                self._handle_line(event)
            if (output := self._read_line(channel.StandardError)).strip():
                self._handle_output(output, is_error=True)
            if not event and not output:
                self._timer.stop()
                if self._exit_status is not None:
                    self._emit_finished(ProcessOutcome(*self._exit_status, list(self._output_tail), self._error_event))
                return

    def _read_line(self, channel: QProcess.ProcessChannel) -> bytes:
        """The next line with its newline, without one at the end of the stream; empty if there is none yet."""
        process = self._process
        assert process is not None
        process.setReadChannel(channel)
        available = process.bytesAvailable()
        is_complete = available >= _MAX_LINE_BYTES or (self._exit_status is not None and available)
        if not is_complete and not process.canReadLine():
            return b""
        line = bytes(process.readLine(_MAX_LINE_BYTES).data())
        is_rest = channel in self._cut_lines
        (self._cut_lines.discard if line.endswith(b"\n") else self._cut_lines.add)(channel)
        return b"\n" if is_rest else line

    def _handle_line(self, line: bytes) -> None:
        try:
            event = protocol.decode_event(line)
        except protocol.ProtocolError:
            self._handle_output(line, is_error=False)
            return
        if isinstance(event, protocol.Error):
            self._error_event = event
        if isinstance(event, protocol.Hello) and event.version[0] > protocol.VERSION[0]:
            self.protocol_incompatible.emit(event.version)
        self.event_received.emit(event)

    def _handle_output(self, line: bytes, *, is_error: bool) -> None:
        # A progress bar overwrites its line after each carriage return; keep the last state.
        text = line.decode("utf-8", errors="replace").rstrip("\r\n").rpartition("\r")[2]
        if len(text) > _MAX_OUTPUT_CHARS:
            text = text[:_MAX_OUTPUT_CHARS] + "…"
        if is_error:
            self._output_tail.append(text)
        self.output_received.emit(text)

    def _emit_finished(self, outcome: ProcessOutcome) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.deleteLater()
        self.finished.emit(outcome)


def process_environment() -> QProcessEnvironment:
    """The environment of child processes, for Qt."""
    environment = QProcessEnvironment()
    for name, value in child_process.environment().items():
        environment.insert(name, value)
    return environment
