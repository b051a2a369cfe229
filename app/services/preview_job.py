"""Trainer processes that inspect the configuration of the form: data previews and checks. Training is not affected."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic

from PySide6.QtCore import QObject, Signal

from app.core import command_line
from app.core.installation import Part, installation
from app.core.preview_keys import PreviewKey, PreviewResult, ReportT, check_key, preview_key, sequence_key
from app.pages.setup.form import SetupForm
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import tr
from app.widgets import formatting
from trainer_core.protocol import AnyEvent, CheckReport, DataReport


class PreviewJob(QObject, Generic[ReportT]):
    """Runs at most one process at a time and keeps the last report. A subclass defines command, report and key."""

    changed = Signal()  # not by the form, on which the state depends too

    report_type: type[ReportT]
    command: ClassVar[tuple[str, ...]]  # of the trainer
    part: ClassVar[Part]  # of the packages
    build_key: ClassVar[Callable[..., PreviewKey]]
    unexpected_exit_key: ClassVar[str]  # text with `{code}` and `{words}`

    def __init__(self, form: SetupForm, process: TrainerProcess | None = None) -> None:
        super().__init__(form)
        self.form = form
        self.result: PreviewResult[ReportT] | None = None  # the last one with a report
        self.running: PreviewResult[ReportT] | None = None
        self.is_cancelled = False  # the running one
        self._data: list[str] = []  # of the last process
        self._failed: ProcessOutcome | None = None  # if it ended without a report
        installation.changed.connect(self.changed)
        self.process = process or TrainerProcess(self)
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def blocked_reason(self) -> str:
        """Why no process can be started; empty if one can."""
        return self.form.blocked_reason or installation.missing_reason(self.part)

    @property
    def is_current(self) -> bool:
        """Whether the result is of the current configuration."""
        return self.result is not None and not self.blocked_reason and self.result.key == self.compute_key()

    @property
    def failure(self) -> str:
        """Why the last process ended without a report; empty if it did not, or other data has been selected."""
        if self._failed is None or self._data != self.form.data:
            return ""
        return format_process_failure(self._failed, self.unexpected_exit_key)

    def compute_key(self) -> PreviewKey:
        """Key of the current configuration."""
        return self.build_key(self.form.values(), self.form.data)

    def start(self) -> None:
        """Inspect the configuration of the form, unless a process is running."""
        form = self.form
        if self.blocked_reason or self.running is not None:
            return
        arguments = command_line.config_arguments(form.preset, form.changes(), form.data)
        if self.process.start([*self.command, *arguments]):
            self.running = PreviewResult(self.compute_key(), self.report_type)
            self._failed, self.is_cancelled, self._data = None, False, form.data
            self.changed.emit()

    def cancel(self) -> None:
        """End the process without a report."""
        if self.running is not None:
            self.is_cancelled = True
            self.process.kill()
            self.changed.emit()

    def discard(self) -> None:
        """Cancel the process and forget the result."""
        self.result = self._failed = None
        self.cancel()
        self.changed.emit()

    def expire_result(self) -> None:
        """Mark the result as outdated: the files of the data have changed."""
        if self.result is not None:
            self.result.key = {}
            self.changed.emit()

    def shutdown(self) -> None:
        """End the process when the window closes."""
        self.process.blockSignals(True)
        self.process.close_input()
        self.process.kill()

    def _on_event(self, event: AnyEvent) -> None:
        if self.running is not None:
            self.running.process(event)
            self.changed.emit()

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        result, self.running = self.running, None
        if result is not None and not self.is_cancelled:
            has_report = result.report is not None
            self.result, self._failed = (result, None) if has_report else (None, outcome)
        self.changed.emit()


class DataPreviewJob(PreviewJob[DataReport]):
    """Reads a sample of the selected data."""

    report_type = DataReport
    command = ("prepare", "--preview")
    part = "data"
    build_key = staticmethod(preview_key)
    unexpected_exit_key = "services.preview_exited"

    def samples_per_epoch(self) -> int | None:
        """Sequences of one epoch of the selected data; None without a preview."""
        result = self.result
        if result is None or result.report is None or self.blocked_reason:
            return None
        return result.report.samples_per_epoch if sequence_key(result.key) == sequence_key(self.compute_key()) else None


class CheckJob(PreviewJob[CheckReport]):
    """Runs some real training steps in a separate process."""

    report_type = CheckReport
    command = ("check",)
    part = "all"
    build_key = staticmethod(check_key)
    unexpected_exit_key = "setup.check_exited"

    @property
    def verdict(self) -> str:
        """Verdict of the current settings; empty without a check of them."""
        return self.result.report.verdict if self.is_current and self.result and self.result.report else ""


def format_process_failure(outcome: ProcessOutcome, unexpected_exit_key: str) -> str:
    """Why a process failed. `unexpected_exit_key`: text with `{code}` and `{words}`, for one without an error event."""
    if outcome.error_event is not None:
        return formatting.localized_message(outcome.error_event.code, outcome.error_event.params)
    if reason := installation.missing_reason("data"):
        return reason
    if outcome.failed_to_start:
        return tr("services.trainer_not_started")
    return tr(unexpected_exit_key, code=outcome.exit_code, words=" ".join(outcome.output_tail[-1:]))
