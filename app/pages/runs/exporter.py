"""Export of a checkpoint in a separate process, which reads and hashes gigabytes."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.services.preview_job import format_process_failure
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import current_language, tr
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import unique_name


class Exporter(QObject):
    """Runs at most one export at a time."""

    message_ready = Signal(str, object)  # message; folder to open, or None
    changed = Signal()  # an export has started or ended

    def __init__(self, process: TrainerProcess | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.process = process or TrainerProcess(self)
        self._target = Path()
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def is_busy(self) -> bool:
        return self.process.is_running

    def start(self, checkpoint: Path, folder: Path) -> None:
        """Export into a new folder in `folder`."""
        name = f"{checkpoint.parent.parent.name[:60]}-{checkpoint.name}"
        self._target = folder / unique_name(name, root=folder)
        arguments = ["export", str(checkpoint), str(self._target), "--language", current_language()]
        if self.process.start(arguments):
            self._emit_progress(0.0)
            self.changed.emit()

    def shutdown(self) -> None:
        """End the process, which has a few seconds to remove an incomplete export."""
        self.process.blockSignals(True)
        self.process.shutdown()

    def _emit_progress(self, fraction: float) -> None:
        self.message_ready.emit(tr("runs.exporting", name=self._target.name, share=f"{fraction:.0%}"), None)

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Progress) and event.total:
            self._emit_progress(event.done / event.total)

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        if outcome.exit_code == 0 and not outcome.crashed:
            self.message_ready.emit(tr("runs.exported", folder=self._target), self._target)
        else:
            self.message_ready.emit(format_process_failure(outcome, "runs.export_exited"), None)
        self.changed.emit()
