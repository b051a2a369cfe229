"""The trainer as a child process: events in, commands out, and a window that never waits for it.

Bytes are read in pieces and cut into lines by hand, and decoded afterwards: a line can arrive in two
halves, and a half line can end within a character. Each turn of the event loop gets a few ms of it;
what is left waits for the next turn, so that a flood of events cannot freeze the window.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal

from trainer_core import protocol
from trainer_core.protocol import AnyCommand
from trainer_core.runs import run_dir

BUDGET_S: Final = 0.008
"""Work for one turn of the event loop."""
MANY: Final = 64
"""So many lines are a pile, which may be taken in together: see `TrainerProcess.many`."""
_MOST: Final = 512
LAST_WORDS: Final = 40
_CHUNK: Final = 64 * 1024
_LONGEST_LINE: Final = 1024 * 1024
_LONGEST_OUTPUT: Final = 4_000
_KILL_AGAIN_MS: Final = 3_000
_ROOT: Final = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended. `exit_code` is the signal's number after a crash on POSIX, -1 if it never started."""

    exit_code: int
    crashed: bool
    last_words: list[str]
    seconds: float
    error_event: protocol.Error | None = None
    failed_to_start: bool = False


def console_python() -> str:
    """The interpreter for the trainer: `python.exe` beside `pythonw.exe`, which has no standard streams."""
    own = Path(sys.executable)
    if own.stem.lower() != "pythonw":
        return sys.executable
    console = own.with_name(f"python{own.suffix}")
    return str(console) if console.is_file() else sys.executable


def trainer_command() -> list[str]:
    """Unbuffered, or lines arrive in clumps; no modules of the current folder; UTF-8, for Chinese Windows has GBK."""
    return [console_python(), "-u", "-P", "-X", "utf8", "-m", "trainer_core"]


class LineSplitter:
    """Bytes in, whole lines out. A line without end is cut; what follows in it is dropped."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> None:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            self._take_lines(head)
        self._rest += b"" if self._skipping else tail
        if len(self._rest) > _LONGEST_LINE:
            self.lines.append(bytes(self._rest[:_LONGEST_LINE]))
            self._rest.clear()
            self._skipping = True

    def finish(self) -> None:
        """The stream ended: what is there is a line."""
        if self._rest:
            self.lines.append(bytes(self._rest))
        self._rest.clear()

    def _take_lines(self, head: bytes) -> None:
        lines = (bytes(self._rest) + head).split(b"\n")
        if self._skipping:
            lines.pop(0)
            self._skipping = False
        self._rest.clear()
        self.lines.extend(line for line in lines if line)


class TrainerProcess(QObject):
    """One trainer at a time. `command` (a program and its first arguments) replaces the real trainer in tests."""

    started = Signal()
    # Hides QObject.event, which nobody calls from Python; Qt's own calls go past it, since only functions override.
    event = Signal(object)  # type: ignore[assignment]  # protocol.AnyEvent
    output = Signal(str)  # a line that is no event
    incompatible = Signal(object)  # (major, minor) of a trainer that speaks a newer protocol
    finished = Signal(object)  # Outcome, after the last event

    def __init__(self, parent: QObject | None = None, *, command: Sequence[str] | None = None) -> None:
        super().__init__(parent)
        # Told what has piled up, and whom to give the lines that are no measurements, in order. Whether it took them.
        self.many: Callable[[list[bytes], Callable[[bytes], None]], bool] | None = None
        self._command = list(command) if command else None
        self._process: QProcess | None = None
        # A zero timer: fires once in every turn of the event loop, between painting and input.
        self._timer = QTimer(self)
        self._timer.setInterval(0)
        self._timer.timeout.connect(self._pump)
        self._reset()

    def _reset(self) -> None:
        self._out, self._err = LineSplitter(), LineSplitter()
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._singly = 0  # so many lines that are waiting are not to be taken together
        self._error_event: protocol.Error | None = None
        self._exit: tuple[int, bool] | None = None
        self._handle: psutil.Process | None = None
        self._began = time.monotonic()
        self._next_id = 1
        self._kill_asked = False

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
        process.setProcessEnvironment(_environment())
        process.setWorkingDirectory(_working_folder())
        process.started.connect(self._on_started)
        process.readyReadStandardOutput.connect(self._wake)
        process.readyReadStandardError.connect(self._wake)
        process.errorOccurred.connect(self._on_error)
        process.finished.connect(self._on_finished)
        # No console window appears: without a console of its own, Qt gives the child CREATE_NO_WINDOW.
        process.start()
        return True

    @property
    def is_running(self) -> bool:
        """From `start` until `finished` was sent."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the process started; on Windows the venv's launcher, whose child is the trainer."""
        return int(self._process.processId()) or None if self._process else None

    @property
    def arguments(self) -> list[str]:
        """What was started, program first."""
        return [self._process.program(), *self._process.arguments()] if self._process else []

    # --- commands --------------------------------------------------------------------------------------

    def send(self, command: AnyCommand) -> bool:
        """Write a command; it gets an id, which its acknowledgement repeats. False when nobody can hear it."""
        process = self._process
        if process is None or self._exit is not None or not process.isWritable():
            return False
        if command.id is None:
            command.id, self._next_id = self._next_id, self._next_id + 1
        return process.write(protocol.encode(command)) >= 0

    def stop(self) -> bool:
        return self.send(protocol.Stop())

    def pause(self) -> bool:
        return self.send(protocol.Pause())

    def resume(self) -> bool:
        return self.send(protocol.Resume())

    def save(self) -> bool:
        return self.send(protocol.Save())

    def sample(self, prompt: str, max_tokens: int = 64) -> bool:
        return self.send(protocol.SampleNow(prompt=prompt, max_tokens=max_tokens))

    def close_input(self) -> None:
        """End of input: the trainer takes its parent for gone, saves and exits by itself."""
        if self._process is not None:
            self._process.closeWriteChannel()

    def kill(self) -> None:
        """End the process and all its descendants (the launcher's child, loader workers). Asking again is free."""
        if self._process is None or self._exit is not None or self._kill_asked:
            return
        self._kill_asked = True
        # Listing descendants looks at every process of the machine: up to 0.1 s, so not on this thread.
        if self._handle is not None:
            threading.Thread(target=kill_tree, args=(self._handle,), daemon=True).start()
        QTimer.singleShot(_KILL_AGAIN_MS if self._handle else 0, self._process, self._process.kill)

    def shutdown(self, grace_s: float = 5.0) -> None:
        """For the window's very end: close the input, wait at most `grace_s`, then kill. The only call that blocks."""
        process = self._process
        if process is None:
            return
        process.closeWriteChannel()
        if not process.waitForFinished(round(1000 * grace_s)):
            if self._handle is not None:
                kill_tree(self._handle)
            process.kill()
            process.waitForFinished(2000)

    # --- what the process does --------------------------------------------------------------------------

    def _on_started(self) -> None:
        with contextlib.suppress(psutil.Error):  # it may be gone again
            self._handle = psutil.Process(self.pid)
        QTimer.singleShot(0, self, self.started.emit)  # on Windows this happens inside `start`, as below

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart and self._process is not None:
            self._last_words.append(self._process.errorString())
            outcome = Outcome(-1, True, list(self._last_words), 0.0, failed_to_start=True)
            # On Windows this happens inside `start`: whoever called it must have come back first.
            QTimer.singleShot(0, self, lambda: self._conclude(outcome))

    def _on_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._exit = (exit_code, status is QProcess.ExitStatus.CrashExit)
        self._wake()

    def _wake(self) -> None:
        if not self._timer.isActive():
            self._timer.start()

    def _pump(self) -> None:
        """Handle waiting lines until there are none or the time is up; the timer calls again."""
        deadline = time.perf_counter() + BUDGET_S
        while True:
            came = len(self._out.lines) < _MOST and self._read(QProcess.ProcessChannel.StandardOutput, self._out)
            came = self._read(QProcess.ProcessChannel.StandardError, self._err) or came
            if came and MANY <= len(self._out.lines) < _MOST:
                return  # a larger pile is less work, and more may have come by the next turn
            busy = self._handle_lines(deadline) or came
            if self._process is None or time.perf_counter() >= deadline:
                return
            if not busy:
                break
        if self._exit is None:
            self._timer.stop()
        else:
            self._finish_lines()

    def _read(self, channel: QProcess.ProcessChannel, lines: LineSplitter) -> bool:
        assert self._process is not None
        self._process.setReadChannel(channel)
        chunk = bytes(self._process.read(_CHUNK).data()) if self._process.bytesAvailable() else b""
        if chunk:
            lines.feed(chunk)
        return bool(chunk)

    def _handle_lines(self, deadline: float) -> bool:
        """Whether there was any. Slots run in here: the time they take counts, and they may start a new run."""
        out, err = self._out.lines, self._err.lines
        any_line = False
        while (out or err) and time.perf_counter() < deadline:
            any_line = True
            if len(out) >= MANY and self.many is not None and not self._singly:
                lines = [out.popleft() for _ in range(min(len(out), _MOST))]
                if not self.many(lines, self._take_line):
                    out.extendleft(reversed(lines))
                    self._singly = len(lines)
            elif out:
                self._singly = max(0, self._singly - 1)
                self._take_line(out.popleft())
            if err:
                self._take_output(err.popleft(), is_error=True)
        return any_line

    def _take_line(self, line: bytes) -> None:
        try:
            event = protocol.decode_event(line)
        except protocol.ProtocolError:
            self._take_undecodable(line)
            return
        if isinstance(event, protocol.Error):
            self._error_event = event
        if isinstance(event, protocol.Hello) and event.version[0] > protocol.VERSION[0]:
            self.incompatible.emit(event.version)
        self.event.emit(event)

    def _take_undecodable(self, line: bytes) -> None:
        version = newer_version(line)
        if version is not None:
            self.incompatible.emit(version)
        else:
            self._take_output(line, is_error=False)

    def _take_output(self, line: bytes, *, is_error: bool) -> None:
        # A progress bar draws itself again after each carriage return: its last state is enough.
        text = line.decode("utf-8", errors="replace").rstrip("\r\n").rpartition("\r")[2]
        if len(text) > _LONGEST_OUTPUT:
            text = text[:_LONGEST_OUTPUT] + "…"
        if is_error:
            self._last_words.append(text)
        self.output.emit(text)

    def _finish_lines(self) -> None:
        """Everything has been read. The last line may lack its newline; after it the run is over."""
        self._out.finish()
        self._err.finish()
        if self._out.lines or self._err.lines or self._exit is None:
            return
        exit_code, crashed = self._exit
        seconds = time.monotonic() - self._began
        self._conclude(Outcome(exit_code, crashed, list(self._last_words), seconds, self._error_event))

    def _conclude(self, outcome: Outcome) -> None:
        self._timer.stop()
        process, self._process = self._process, None
        if process is not None:
            process.deleteLater()
        self.finished.emit(outcome)


def newer_version(line: bytes) -> tuple[int, int] | None:
    """The version in a `hello` that this program cannot read because it is from a later time; else None."""
    if b'"hello"' not in line:
        return None
    try:
        content = json.loads(line)
        major, minor = content["version"][:2] if content["type"] == "hello" else (0, 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    newer = isinstance(major, int) and isinstance(minor, int) and major > protocol.VERSION[0]
    return (major, minor) if newer else None


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and its descendants. A pid that belongs to another process by now is left alone."""
    with contextlib.suppress(psutil.Error):
        descendants = process.children(recursive=True)
        for member in [process, *descendants]:
            with contextlib.suppress(psutil.Error):
                member.kill()


def _environment() -> QProcessEnvironment:
    """Ours, with UTF-8 mode for the loader workers too and this project first on the import path."""
    environment = QProcessEnvironment.systemEnvironment()
    known = environment.value("PYTHONPATH")
    environment.insert("PYTHONPATH", os.pathsep.join(filter(None, (str(_ROOT), known))))
    environment.insert("PYTHONUTF8", "1")
    return environment


def _working_folder() -> str:
    """Traindeck's folder: relative paths mean the same as in a terminal opened there."""
    folder = run_dir.home()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder) if folder.is_dir() else str(_ROOT)
