"""Export of a checkpoint in a separate process, which writes and verifies gigabytes."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.export_options import ExportOptions
from app.services.preview_job import format_process_failure
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import current_language
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import AnyEvent, PhaseName, Verification


class ExportJob(QObject):
    """Runs at most one export at a time and keeps the result of the last one.

    Attributes:
        target: Folder of the last export; it exists once the export has ended without a failure.
        fraction: Of the present phase, 0..1; None: not known.
        failure: Why the last export wrote nothing; empty if it did, or was stopped.
    """

    changed = Signal()

    def __init__(self, process: TrainerProcess | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.process = process or TrainerProcess(self)
        self.target: Path | None = None
        self.phase: PhaseName = "saving"
        self.fraction: float | None = None
        self.verification: Verification | None = None
        self.failure, self.is_stopping = "", False
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    def start(self, checkpoint: Path, target: Path, options: ExportOptions) -> None:
        """Export to the new folder `target`, unless an export is running."""
        arguments = ["export", str(checkpoint), str(target), *options.arguments(), "--language", current_language()]
        if self.process.start(arguments):
            self.target, self.phase, self.fraction, self.verification = target, "saving", None, None
            self.failure, self.is_stopping = "", False
            self.changed.emit()

    def stop(self) -> None:
        """Request a stop, which removes what is incomplete."""
        if self.process.send(protocol.Stop()):
            self.is_stopping = True
            self.changed.emit()

    def shutdown(self) -> None:
        """End the process, which has a few seconds to remove an incomplete export."""
        self.process.blockSignals(True)
        self.process.shutdown()

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Phase):
            self.phase, self.fraction = event.phase, None
        elif isinstance(event, protocol.Progress):
            self.phase, self.fraction = event.phase, event.done / event.total if event.total else None
        elif isinstance(event, Verification):
            self.verification = event
        else:
            return
        self.changed.emit()

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        is_written = outcome.exit_code in (ExitCode.FINISHED, ExitCode.NOT_VERIFIED) and not outcome.crashed
        if not is_written:
            self.target = None
            stopped = outcome.exit_code == ExitCode.STOPPED and not outcome.crashed
            self.failure = "" if stopped else format_process_failure(outcome, "export.exited")
        self.changed.emit()
