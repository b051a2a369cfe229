"""A command of the trainer in a separate process: progress, stop, and the event that is its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from PySide6.QtCore import QObject, Signal

from app.services.preview_job import format_process_failure
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import AnyEvent, PhaseName

ResultT = TypeVar("ResultT", bound=protocol.Event)


class TrainerJob(QObject, Generic[ResultT]):
    """Runs at most one process at a time and keeps the result of the last one.

    Attributes:
        fraction: Of the present phase, 0..1; None: not known.
        result: Last event of the type `result_type`; None before it.
        is_complete: Whether the last process has ended with one of `success_codes`.
        failure: Why the last process did not complete; empty if it did, or was stopped.
    """

    changed = Signal()

    result_type: type[ResultT]
    first_phase: ClassVar[PhaseName]
    unexpected_exit_key: ClassVar[str]  # text with `{code}` and `{words}`
    success_codes: ClassVar[frozenset[ExitCode]] = frozenset({ExitCode.FINISHED})

    def __init__(self, process: TrainerProcess | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.process = process or TrainerProcess(self)
        self.phase: PhaseName = self.first_phase
        self.fraction: float | None = None
        self.result: ResultT | None = None
        self.failure, self.is_stopping, self.is_complete = "", False, False
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    @property
    def shown_phase(self) -> PhaseName:
        """The present phase; after a request to stop, `stopping`."""
        return "stopping" if self.is_stopping else self.phase

    def run_command(self, arguments: Sequence[str]) -> None:
        """Start the trainer, unless it is running."""
        if self.process.start(arguments):
            self.phase, self.fraction, self.result = self.first_phase, None, None
            self.failure, self.is_stopping, self.is_complete = "", False, False
            self.changed.emit()

    def stop(self) -> None:
        """Request a stop, which removes what is incomplete."""
        if self.process.send(protocol.Stop()):
            self.is_stopping = True
            self.changed.emit()

    def shutdown(self) -> None:
        """End the process, which has a few seconds to remove what is incomplete."""
        self.process.blockSignals(True)
        self.process.shutdown()

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Phase):
            self.phase, self.fraction = event.phase, None
        elif isinstance(event, protocol.Progress):
            self.phase, self.fraction = event.phase, event.done / event.total if event.total else None
        elif isinstance(event, self.result_type):
            self.result = event
        else:
            return
        self.changed.emit()

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        self.is_complete = outcome.exit_code in self.success_codes and not outcome.crashed
        if not self.is_complete:
            stopped = outcome.exit_code == ExitCode.STOPPED and not outcome.crashed
            self.failure = "" if stopped else format_process_failure(outcome, self.unexpected_exit_key)
        self.changed.emit()
