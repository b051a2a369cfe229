"""Trainer processes that inspect the configuration of the form: data previews and checks. Training is not affected."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, Generic

from PySide6.QtCore import QObject, QTimer

from app.core import command_line
from app.core.preview_keys import PreviewKey, PreviewResult, ReportT, preview_key, sequence_key
from app.pages.setup.form import SetupForm
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import tr
from app.widgets import formatting
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent, DataReport, Ready, Stop

if TYPE_CHECKING:  # imported after the first paint
    from app.pages.data.page import DataPage

_KILL_TIMEOUT_MS: Final = 3_000  # after a cancel


class PreviewJob(QObject, Generic[ReportT]):
    """Runs at most one process at a time and keeps the last report.

    A subclass defines the command, the key of a report, and how the state is displayed.
    """

    report_type: type[ReportT]
    command: ClassVar[tuple[str, ...]]  # of the trainer
    build_key: ClassVar[Callable[..., PreviewKey]]  # of `preview_keys`
    unexpected_exit_key: ClassVar[str]  # text with `{code}` and `{words}`

    def __init__(
        self, form: SetupForm, show_error: Callable[[TraindeckError], None], process: TrainerProcess | None
    ) -> None:
        super().__init__(form)
        self._form, self._show_error = form, show_error
        self.result: PreviewResult[ReportT] | None = None  # the last one with a report
        self.running: PreviewResult[ReportT] | None = None
        self._data: list[str] = []  # of the last process
        self._failed: ProcessOutcome | None = None  # if it ended without a report
        self.is_cancelling = False
        self.process = process or TrainerProcess(self)
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @abstractmethod
    def refresh(self) -> None:
        """Display the current state."""

    def compute_key(self) -> PreviewKey:
        """Key of the current configuration."""
        return self.build_key(self._form.values(), self._form.data)

    # --- the process -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Inspect the configuration of the form, unless a process is running."""
        form, preset = self._form, self._form.preset
        if preset is None or self.running is not None or self.blocked_reason:
            return
        try:
            arguments = [*self.command, *command_line.config_arguments(preset, form.changes(), form.data)]
        except TraindeckError as error:
            self._show_error(error)
            return
        if self.process.start(arguments):
            self.running = PreviewResult(self.compute_key(), self.report_type)
            self._failed, self.is_cancelling = None, False
            self._data = form.data
            self.refresh()

    def cancel(self) -> None:
        """End the process without a report."""
        if self.running is not None and not self.is_cancelling:
            self.is_cancelling = True
            self.process.send(Stop())
            QTimer.singleShot(_KILL_TIMEOUT_MS, self, lambda result=self.running: self._kill_if_running(result))
            self.refresh()

    def shutdown(self) -> None:
        """End the process when the window closes."""
        self.process.blockSignals(True)
        self.process.close_input()
        self.process.kill()

    def _kill_if_running(self, result: PreviewResult[ReportT]) -> None:
        if self.running is result:
            self.process.kill()

    def _on_event(self, event: AnyEvent) -> None:
        if self.running is not None:
            self.running.process(event)
            self.refresh()

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        result, self.running = self.running, None
        if result is None:
            return
        if result.report is not None:
            self.result = result
        elif not self.is_cancelling:
            self._failed, self.result = outcome, None
        self.is_cancelling = False
        self.refresh()

    # --- results -----------------------------------------------------------------------------------------

    @property
    def blocked_reason(self) -> str:
        """Why no process can be started; empty if one can."""
        return self._form.blocked_reason

    def find_result(self) -> tuple[PreviewResult[ReportT] | None, bool]:
        """The result to show, and whether it is of the current configuration."""
        if self.result is None or self.blocked_reason:
            return self.result, False
        return self.result, self.result.key == self.compute_key()

    def expire_result(self) -> None:
        """Mark the result as outdated."""
        if self.result is not None:
            self.result.key = ()
            self.refresh()

    def format_failure(self) -> str:
        """Why the last process ended without a report; empty if it did not, or other data has been selected."""
        if self._failed is None or self._data != self._form.data:
            return ""
        return format_process_failure(self._failed, self.unexpected_exit_key)


def format_process_failure(outcome: ProcessOutcome, unexpected_exit_key: str) -> str:
    """Why a process failed. `unexpected_exit_key`: text with `{code}` and `{words}`, for one without an error event."""
    if outcome.error_event is not None:
        return formatting.localized_message(outcome.error_event.code, outcome.error_event.params)
    if outcome.failed_to_start:
        return tr("services.trainer_not_started")
    return tr(unexpected_exit_key, code=outcome.exit_code, words=" ".join(outcome.output_tail[-1:]))


class DataPreviewJob(PreviewJob[DataReport]):
    """Reads a sample of the selected data and displays statistics on the data page."""

    report_type = DataReport
    command = ("prepare", "--preview")
    build_key = staticmethod(preview_key)
    unexpected_exit_key = "services.preview_exited"

    def __init__(
        self, form: SetupForm, show_error: Callable[[TraindeckError], None], process: TrainerProcess | None
    ) -> None:
        super().__init__(form, show_error, process)
        self._page: DataPage | None = None
        self._ready: Ready | None = None

    def connect_page(self, page: DataPage) -> None:
        self._page = page
        page.preview_requested.connect(self.start)
        page.cancel_requested.connect(self.cancel)

    def samples_per_epoch(self) -> int | None:
        """Sequences of one epoch of the selected data; None without a preview."""
        result = self.result
        if result is None or result.report is None or self.blocked_reason:
            return None
        return result.report.samples_per_epoch if sequence_key(result.key) == sequence_key(self.compute_key()) else None

    def display(self, ready: Ready | None) -> None:
        """Update the page. `ready`: data of the displayed run."""
        self._ready = ready
        self.refresh()

    def refresh(self) -> None:
        if self._page is None or not self._page.isVisible():
            return
        from app.pages.data.page import DataState

        result, is_current = self.find_result()
        failure = "" if is_current else self.format_failure()
        self._page.display(
            DataState(result, is_current, self.running, self.is_cancelling, failure, self.blocked_reason, self._ready)
        )
