"""Export of a checkpoint in a separate process, which reads and hashes gigabytes."""

from __future__ import annotations

import os
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.history.run_files import unique_name
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import current_language, tr
from app.widgets import formatting
from trainer_core import protocol
from trainer_core.protocol import AnyEvent


class Exporter(QObject):
    """Runs at most one export at a time."""

    message_ready = Signal(object, object)  # function that returns the translated message; folder to open, or None
    changed = Signal()  # an export has started or ended

    def __init__(self, process: TrainerProcess | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.process = process or TrainerProcess(self)
        self._target = Path()
        self._error: protocol.Error | None = None
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def is_busy(self) -> bool:
        return self.process.is_running

    def start(self, checkpoint: Path, folder: Path) -> None:
        """Export into the folder that `choose_export_folder` returns."""
        self._target, self._error = choose_export_folder(folder, checkpoint), None
        arguments = ["export", str(checkpoint), str(self._target), "--language", current_language()]
        if self.process.start(arguments):
            self._emit_progress(0.0)
            self.changed.emit()

    def shutdown(self) -> None:
        """End the process, which has a few seconds to remove an incomplete export."""
        self.process.blockSignals(True)
        self.process.shutdown()

    def _emit_progress(self, fraction: float) -> None:
        name = self._target.name
        self.message_ready.emit(lambda: tr("runs.exporting", name=name, share=f"{fraction:.0%}"), None)

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Error):
            self._error = event
        elif isinstance(event, protocol.Progress) and event.total:
            self._emit_progress(event.done / event.total)

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        target, error = self._target, self._error
        if outcome.exit_code == 0 and not outcome.crashed:
            self.message_ready.emit(lambda: tr("runs.exported", folder=target), target)
        elif error is not None:
            self.message_ready.emit(lambda: formatting.localized_message(error.code, error.params), None)
        else:
            values = {"code": outcome.exit_code, "words": " ".join(outcome.output_tail[-1:])}
            self.message_ready.emit(lambda: tr("runs.export_exited", **values), None)
        self.changed.emit()


def choose_export_folder(folder: Path, checkpoint: Path) -> Path:
    """`folder` if it does not exist, or is empty and replaceable, else an unused name in it."""
    try:
        if not _is_irreplaceable(folder) and not any(folder.iterdir()):
            return folder
    except OSError:
        return folder
    return folder / unique_name(f"{checkpoint.parent.parent.name[:60]}-{checkpoint.name}", root=folder)


def _is_irreplaceable(folder: Path) -> bool:
    """Whether `folder` is a drive, mount point or link, or its parent is not writable."""
    # Path.is_mount() does not support Windows before Python 3.12.
    if os.path.ismount(folder) or folder.is_symlink():
        return True
    return folder.exists() and not os.access(folder.parent, os.W_OK)
