"""`train_gpu setup` as a child process, which downloads and installs packages while the window is open."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path
from typing import Final, Literal

import msgspec
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from app.core.installation import installation
from app.services.trainer_process import console_interpreter
from app.texts import current_language, tr
from trainer_core.system import child_process

LAUNCHER: Final = Path(__file__).resolve().parents[2] / "train_gpu.py"
_MAX_LINES: Final = 2000
_MAX_ERROR_BYTES: Final = 4000
_KILL_TIMEOUT_MS: Final = 2000


class Text(msgspec.Struct, tag="text"):
    """A line for the user, in the language of the window."""

    text: str


class Stage(msgspec.Struct, tag="stage"):
    """What setup begins to do."""

    text: str


class SetupPlan(msgspec.Struct, tag="plan"):
    """What is installed. Sizes are in bytes."""

    torch: str  # build: cpu, cu126, cu130 …
    reason: str  # why this build
    source: str  # of PyTorch
    bytes: int  # of the download
    done: int  # of it, by an earlier setup
    free: int  # on the disk
    needed: int  # on the disk
    mirror: str = ""


class DownloadProgress(msgspec.Struct, tag="progress"):
    """State of the download. `rate` is in bytes/s."""

    done: int
    total: int
    rate: float | None = None
    eta_s: float | None = None
    file: str = ""  # name of a package


class PartReady(msgspec.Struct, tag="ready"):
    """A part is installed: window, data or all."""

    part: str


class Mirror(msgspec.Struct, tag="mirror"):
    """A measured source of packages. `name`: empty for the one without a mirror; `rate`: bytes/s, 0: no answer."""

    name: str
    label: str
    rate: float


class End(msgspec.Struct, tag="end"):
    """The last event. `restart`: an update was made beside this environment, for the next start of the window."""

    code: int
    text: str = ""  # the error
    restart: bool = False


SetupEvent = Text | Stage | SetupPlan | DownloadProgress | PartReady | Mirror | End
_decoder: Final = msgspec.json.Decoder(SetupEvent)


class LauncherProcess(QObject):
    """Runs `train_gpu setup --output json` with further arguments, one process at a time."""

    event_received = Signal(object)  # SetupEvent
    finished = Signal(int, str)  # exit code and end of stderr, after the last event

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._errors = b""  # end of stderr

    @property
    def is_running(self) -> bool:
        """From `start` until `finished` is emitted."""
        return self._process is not None

    def start(self, arguments: list[str]) -> None:
        """Start a process. One that cannot be started ends in `finished`, with code -1."""
        process = self._process = QProcess(self)
        self._errors = b""
        environment = QProcessEnvironment.systemEnvironment()
        environment.insert("TRAINDECK_LANG", current_language())
        process.setProcessEnvironment(environment)
        process.setWorkingDirectory(str(LAUNCHER.parent))
        process.readyReadStandardOutput.connect(self._read_events)
        process.readyReadStandardError.connect(self._read_errors)
        process.errorOccurred.connect(self._on_error)
        process.finished.connect(self._on_finished)
        command = ["-I", "-X", "utf8", str(LAUNCHER), "setup", "--output", "json", *arguments]
        process.start(console_interpreter(), command)

    def kill(self) -> None:
        """Kill the process and its descendants, such as uv."""
        if self._process is not None:
            if pid := self._process.processId():
                child_process.kill_tree(pid)
            self._process.kill()

    def shutdown(self) -> None:
        """Kill the process without further signals. Blocks until it has ended."""
        if self._process is not None:
            self._process.blockSignals(True)
            self.kill()
            self._process.waitForFinished(_KILL_TIMEOUT_MS)

    def _read_events(self) -> None:
        while (process := self._process) is not None and process.canReadLine():
            with contextlib.suppress(msgspec.DecodeError):  # also an event of a later version
                self.event_received.emit(_decoder.decode(bytes(process.readLine().data())))

    def _read_errors(self) -> None:
        if self._process is not None:
            self._errors = (self._errors + bytes(self._process.readAllStandardError().data()))[-_MAX_ERROR_BYTES:]

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart and self._process is not None:
            self._errors = self._process.errorString().encode()
            self._on_finished(-1)

    def _on_finished(self, code: int) -> None:
        self._read_events()
        self._read_errors()
        if self._process is not None:
            self._process.deleteLater()
        self._process = None
        self.finished.emit(code, self._errors.decode("utf-8", "replace").strip())


class SetupJob(QObject):
    """Completes the environment of this window. Killing the process pauses it: the next one continues the download.

    Attributes:
        stage, plan, progress: Last events of these types; None before them.
        failure: Why the last process failed; empty if it did not.
        needs_restart: What it installed is used by the next start of the window.
        mirrors: Sources measured by `measure_mirrors`.
        lines: What the processes said, for a view of the details.
    """

    changed = Signal()
    line_added = Signal(str)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.state: Literal["offered", "running", "paused", "failed", "finished"] = "offered"
        self.reason = ""  # of an offered update
        self.plan: SetupPlan | None = None
        self.progress: DownloadProgress | None = None
        self.stage: Stage | None = None
        self.failure = ""
        self.needs_restart = False
        self.mirrors: list[Mirror] = []
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._mirror: str | None = None  # None: as chosen earlier
        self._end: End | None = None
        self._is_killed = False  # and has not ended yet
        self._setup, self._measurement = LauncherProcess(self), LauncherProcess(self)
        self._setup.event_received.connect(self._on_event)
        self._setup.finished.connect(self._on_finished)
        self._measurement.event_received.connect(self._on_mirror)
        self._measurement.finished.connect(lambda *_: self.changed.emit())

    @property
    def mirror(self) -> str | None:
        """Name of the source; empty for the one without a mirror, None: not known yet."""
        return self._mirror if self._mirror is not None or self.plan is None else self.plan.mirror

    @property
    def is_measuring(self) -> bool:
        return self._measurement.is_running

    def offer(self, reason: str) -> None:
        """Wait for `start`: an update is possible."""
        self.reason = reason
        self.changed.emit()

    def start(self) -> None:
        """Start or continue."""
        self.state, self.failure, self.stage, self._end = "running", "", None, None
        if not self._setup.is_running:
            self._setup.start([] if self._mirror is None else ["--mirror", self._mirror or "none"])
        self.changed.emit()

    def pause(self) -> None:
        """End the process. What it has downloaded stays."""
        self.state = "paused"
        self._kill()
        self.changed.emit()

    def measure_mirrors(self) -> None:
        """Measure the speed of the sources, one after another, beside the download."""
        if not self._measurement.is_running:
            self.mirrors = []
            self._measurement.start(["--mirrors"])
            self.changed.emit()

    def choose_mirror(self, name: str) -> None:
        """Continue the download from another source."""
        self._mirror = name
        self._kill()
        self.start()  # when the process has ended

    def shutdown(self) -> None:
        """Pause, and end the measurement."""
        for process in (self._setup, self._measurement):
            process.shutdown()

    def _kill(self) -> None:
        self._is_killed = self._setup.is_running
        self._setup.kill()

    def _on_event(self, event: SetupEvent) -> None:
        match event:
            case Text():
                self.lines.append(event.text)
                self.line_added.emit(event.text)
            case Stage():
                self.stage = event
            case SetupPlan():
                self.plan = event
            case DownloadProgress():
                self.progress = event
            case PartReady(part="data"):
                installation.on_ready("data")
            case End():
                self._end = event
        self.changed.emit()

    def _on_mirror(self, event: SetupEvent) -> None:
        if isinstance(event, Mirror):
            self.mirrors.append(event)
            self.changed.emit()

    def _on_finished(self, code: int, errors: str) -> None:
        end, was_killed = self._end, self._is_killed
        self._is_killed = False
        if end is not None and end.code == 0:
            self._complete(end)
        elif was_killed:
            if self.state == "running":  # from another mirror, or continued before the process had ended
                self.start()
        elif end is not None:
            self._fail(end.text)
        else:
            self.lines.extend(errors.splitlines())
            self._fail(tr("installation.exited", code=code, words=errors.rpartition("\n")[2]))

    def _complete(self, end: End) -> None:
        self.state, self.needs_restart = "finished", end.restart
        if not end.restart:
            installation.on_ready("all")
        self.changed.emit()

    def _fail(self, text: str) -> None:
        self.state, self.failure = "failed", text
        self.changed.emit()
