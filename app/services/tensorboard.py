"""TensorBoard in a child process, shown in the browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from PySide6.QtCore import QObject, QProcess, QUrl, Signal
from PySide6.QtGui import QDesktopServices

from app.services.trainer_process import console_interpreter, process_environment
from trainer_core.messages import TraindeckError
from trainer_core.trackers.sink import require_packages

_MAX_OUTPUT_BYTES: Final = 2000


class TensorBoard(QObject):
    """Serves the event files of all runs below `root`, or of another run, until `shutdown`."""

    failed = Signal(object)  # TraindeckError

    def __init__(self, root: Path, parent: QObject) -> None:
        super().__init__(parent)
        self._root = self._folder = root
        self._runs: Sequence[Path] = ()
        self._process: QProcess | None = None
        self._address = ""
        self._error_output = b""  # the end of it

    def show(self, runs: Sequence[Path]) -> None:
        """Open the browser with these runs, once the server answers."""
        self._runs = [run for run in runs if any(run.glob("events.out.tfevents.*"))]
        try:
            if not self._runs:
                raise TraindeckError("tracker.no_event_files", name=", ".join(run.name for run in runs))
            require_packages("tensorboard", console_interpreter())
        except TraindeckError as error:
            self.failed.emit(error)
            return
        folder = self._root if self._runs[0].is_relative_to(self._root) else self._runs[0]
        if folder != self._folder:
            self.shutdown()
        self._folder = folder
        if self._process is None:
            self._start()
        elif self._address:
            self._open_browser()

    def shutdown(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.blockSignals(True)
            self._process.closeWriteChannel()
            if not self._process.waitForFinished(1000):
                self._process.kill()
                self._process.waitForFinished(1000)
            self._process.deleteLater()
        self._process, self._address = None, ""

    def _start(self) -> None:
        process = self._process = QProcess(self)
        self._error_output = b""
        process.setProcessEnvironment(process_environment())
        process.readyReadStandardOutput.connect(self._on_output)
        process.readyReadStandardError.connect(self._on_error_output)
        process.finished.connect(self._on_finished)
        process.errorOccurred.connect(self._on_error)
        arguments = ["-P", "-X", "utf8", "-m", "trainer_core.trackers.tensorboard_server", str(self._folder)]
        process.start(console_interpreter(), arguments)

    def _on_output(self) -> None:
        if self._process is not None and not self._address and self._process.canReadLine():
            self._address = bytes(self._process.readLine().data()).decode("ascii", "replace").strip()
            self._open_browser()

    def _on_error_output(self) -> None:
        if self._process is not None:
            output = self._error_output + bytes(self._process.readAllStandardError().data())
            self._error_output = output[-_MAX_OUTPUT_BYTES:]

    def _open_browser(self) -> None:
        address = self._address
        if self._folder == self._root:
            names = "|".join(re.escape(run.relative_to(self._root).as_posix()) for run in self._runs)
            address += f"?runFilter={quote(f'^({names})$')}"
        if not QDesktopServices.openUrl(QUrl.fromEncoded(address.encode("ascii"))):
            self.failed.emit(TraindeckError("tracker.no_browser", address=self._address))

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart and self._process is not None:
            self._error_output = self._process.errorString().encode()
            self._on_finished()

    def _on_finished(self) -> None:
        process, address = self._process, self._address
        self._process, self._address = None, ""
        if process is not None:
            process.deleteLater()
            if not address:
                last_line = self._error_output.decode("utf-8", "replace").strip().rpartition("\n")[2]
                self.failed.emit(TraindeckError("tracker.no_server", reason=last_line.strip().rstrip(".")))
