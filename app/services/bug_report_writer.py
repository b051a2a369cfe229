"""Builds a bug report in a child process and reads its parts for a preview."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import psutil
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from app.services.trainer_process import console_interpreter, kill_tree
from trainer_core.system import child_process, files

_PREVIEW_BYTES: Final = 64 * 1024  # of each part


class BugReportBuilder(QObject):
    """One bug report. `finished` carries its parts (name, size in bytes, beginning); `failed`, a reason."""

    finished = Signal(object)  # list[tuple[str, int, str]]
    failed = Signal(str)

    def __init__(self, run: Path | None, window_log: Path, settings: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = Path(tempfile.mkdtemp(prefix="traindeck-bundle-"))
        self._zip = self._folder / "bundle.zip"
        self._process = QProcess(self)
        environment = QProcessEnvironment()
        for name, value in child_process.environment(PYTHONUTF8="1").items():
            environment.insert(name, value)
        self._process.setProcessEnvironment(environment)
        self._process.setWorkingDirectory(str(self._folder))
        chosen = ["--run", str(run)] if run is not None else []
        self._arguments = ["-P", "-X", "utf8", "-m", "app.core.bug_report", str(self._zip), *chosen]
        self._arguments += ["--window-log", str(window_log), "--settings", str(settings)]
        self._process.finished.connect(self._on_finished)
        self._process.errorOccurred.connect(self._on_error)

    def start(self) -> None:
        self._process.start(console_interpreter(), self._arguments)

    def save(self, path: Path) -> None:
        """Copy the bundle to `path`. Raises OSError."""
        files.write_atomic(path, self._zip.read_bytes())

    def discard(self) -> None:
        """Stop the process and delete the bundle."""
        self.blockSignals(True)
        if self._process.state() is not QProcess.ProcessState.NotRunning:
            with contextlib.suppress(psutil.Error):
                kill_tree(psutil.Process(int(self._process.processId())))  # including its doctor process
            self._process.waitForFinished(1000)
        shutil.rmtree(self._folder, ignore_errors=True)
        self.deleteLater()

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            self.failed.emit(self._process.errorString())

    def _on_finished(self, exit_code: int, _: QProcess.ExitStatus) -> None:
        if exit_code != 0:
            words = bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace").strip()
            self.failed.emit(words.splitlines()[-1] if words else f"code {exit_code}")
            return
        with zipfile.ZipFile(self._zip) as archive:
            parts = []
            for entry in archive.infolist():
                with archive.open(entry) as part:
                    text = part.read(_PREVIEW_BYTES).decode("utf-8", "replace")
                parts.append(
                    (entry.filename, entry.file_size, text + ("\n…" if entry.file_size > _PREVIEW_BYTES else ""))
                )
        self.finished.emit(parts)
