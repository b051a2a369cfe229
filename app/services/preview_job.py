"""Trainers that only look at something: processes of their own, beside whatever run is going on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic

from PySide6.QtCore import QObject, QTimer, Signal

from app.core import command_line, data_report_inputs
from app.core.data_report_inputs import SourceStampCache
from app.core.preview_cache import PreviewCache, PreviewKey, PreviewResult, ReportT
from app.pages.setup.form import SetupForm
from app.pages.setup.start_blocker import blocking_reason
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import tr
from app.widgets import formatting
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent, DataReport, Ready

if TYPE_CHECKING:  # a page that is made after the first paint
    from app.pages.data.page import DataPage

_KILL_TIMEOUT_MS: Final = 3_000  # after a cancel: nothing of a look is worth waiting for


class PreviewJob(QObject, Generic[ReportT]):
    """At most one look at a time. The reports of earlier ones are kept for the configurations they are true of.

    A subclass says what to start, what a report depends on, and shows all this in `refresh`.
    """

    report_type: type[ReportT]
    data_checked = Signal(object, object)  # Key of the data; the Error that said that it cannot be read, None: it can

    def __init__(
        self, form: SetupForm, show_error: Callable[[TraindeckError], None], process: TrainerProcess | None
    ) -> None:
        super().__init__(form)
        self._form, self._show_error = form, show_error
        self.cache: PreviewCache[ReportT] = PreviewCache()
        self._file_stamps = SourceStampCache()
        self.running: PreviewResult[ReportT] | None = None
        self._data_key: PreviewKey = ()  # what the look that is running depends on in the data
        self._failed: tuple[PreviewResult[ReportT], ProcessOutcome] | None = (
            None  # the last one, where it ended without a report
        )
        self._cancelled = False
        self.process = process or TrainerProcess(self)
        self.process.event_received.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    def arguments(self) -> list[str]:
        """The trainer's arguments for what the form says. Raises `TraindeckError` for a value that no run takes."""
        raise NotImplementedError

    def compute_key(self, *, fresh: bool = False) -> PreviewKey:
        """What a report depends on, as it is now. `fresh`: also files that were looked at a moment ago."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Show what there is."""
        raise NotImplementedError

    # --- looking -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at what the form says, unless a look is under way."""
        if self._form.preset is None or self.running is not None or self.blocked_reason:
            return
        try:
            arguments = self.arguments()
        except TraindeckError as error:
            self._show_error(error)
            return
        if self.process.start(arguments):
            self.running, self._failed, self._cancelled = (
                PreviewResult(self.compute_key(fresh=True), self.report_type),
                None,
                False,
            )
            self._data_key = data_report_inputs.preview_key(
                self._form.values(), self._form.data, self._file_stamps.get(self._form.all_data)
            )
            self.refresh()

    def cancel(self) -> None:
        """End the look without a report."""
        if self.running is not None and not self._cancelled:
            self._cancelled = True
            self.process.stop()
            QTimer.singleShot(_KILL_TIMEOUT_MS, self, lambda look=self.running: self._kill_if_running(look))
            self.refresh()

    def shutdown(self) -> None:
        """The window closes: the process goes with it."""
        self.process.blockSignals(True)
        self.process.close_input()
        self.process.kill()

    def _kill_if_running(self, look: PreviewResult[ReportT]) -> None:
        if self.running is look:
            self.process.kill()

    def _on_event(self, event: AnyEvent) -> None:
        if self.running is not None:
            self.running.process(event)
            self.refresh()

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        look, self.running = self.running, None
        if look is None:
            return
        if look.report is not None:
            self.cache.store(look)
        elif not self._cancelled:
            self._failed = look, outcome
            self.cache.invalidate(look.key)
        refused = look.error is not None and look.error.code.startswith("data.")
        if refused or look.report is not None:
            self.data_checked.emit(self._data_key, look.error if refused else None)
        self.refresh()

    # --- what is known -----------------------------------------------------------------------------------

    @property
    def blocked_reason(self) -> str:
        """Why nothing can be looked at now; empty when it can."""
        return blocking_reason(self._form, ())

    @property
    def is_cancelling(self) -> bool:
        return self.running is not None and self._cancelled

    def find_result(self) -> tuple[PreviewResult[ReportT] | None, bool]:
        """The look to show, and whether it is of what the form says."""
        return self.cache.lookup(None if self.blocked_reason else self.compute_key())

    def format_failure(self) -> str:
        """Why the last look at the chosen data ended without a report, in the current language; empty: it did not."""
        if self._failed is None:
            return ""
        look, outcome = self._failed
        if [part for part in self._data_key if isinstance(part, str)] != self._form.data:
            return ""
        if look.error is not None:
            return formatting.localized_message(look.error.code, look.error.params)
        if outcome.failed_to_start:
            return tr("services.trainer_could_not_be_started")
        return self.unexpected_exit_template().format(code=outcome.exit_code, words=" ".join(outcome.output_tail[-1:]))

    def unexpected_exit_template(self) -> str:
        """That it ended without a word, with places for `{code}` and `{words}`."""
        raise NotImplementedError


class DataPreviewJob(PreviewJob[DataReport]):
    """The look at the chosen data, and its page."""

    report_type = DataReport

    def __init__(
        self, form: SetupForm, show_error: Callable[[TraindeckError], None], process: TrainerProcess | None
    ) -> None:
        super().__init__(form, show_error, process)
        self._page: DataPage | None = None
        self._ready: Ready | None = None

    def connect_page(self, page: DataPage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page = page
        page.preview_requested.connect(self.start)
        page.cancel_requested.connect(self.cancel)

    def arguments(self) -> list[str]:
        form = self._form
        name = form.preset.name if form.preset else ""
        return command_line.preview_arguments(name, form.changes(), form.data, loaded_preset=form.preset)

    def compute_key(self, *, fresh: bool = False) -> PreviewKey:
        stamps = self._file_stamps.get(self._form.all_data, refresh=fresh)
        return data_report_inputs.preview_key(self._form.values(), self._form.data, stamps)

    def samples_per_epoch(self) -> tuple[int, bool] | None:
        """Sequences of one epoch of the chosen data, and whether that is exact; None: it was not looked at."""
        if self.blocked_reason or not self.cache.results:
            return None
        wanted = data_report_inputs.sequence_key(self.compute_key())
        for look in self.cache.results:
            if look.report is not None and data_report_inputs.sequence_key(look.key) == wanted:
                return look.report.samples_per_epoch, look.report.complete
        return None

    def display(self, ready: Ready | None) -> None:
        """Show what is known. `ready`: what the run on show trains on."""
        self._ready = ready
        self.refresh()

    def refresh(self) -> None:
        if self._page is None or not self._page.isVisible():
            return
        from app.pages.data.page import DataState

        look, current = self.find_result()
        failure = "" if current else self.format_failure()  # of another configuration than the one that is shown
        self._page.display(
            DataState(look, current, self.running, self.is_cancelling, failure, self.blocked_reason, self._ready)
        )

    def unexpected_exit_template(self) -> str:
        return tr("services.looking_at_data_ended_unexpectedly")
