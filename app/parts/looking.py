"""Trainers that only look at something: processes of their own, beside whatever run is going on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic

from PySide6.QtCore import QObject, QTimer, Signal

from app.services.trainer_process import Outcome, TrainerProcess
from app.state import command_line, data_looks
from app.state.data_looks import Stamps
from app.state.looks import Key, Look, Looks, R
from app.views import words
from app.views.setup.form import SetupForm
from app.views.setup.reason import blocking_reason
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent, DataReport, Ready

if TYPE_CHECKING:  # a page that is made after the first paint
    from app.views.data.page import DataPage

_PATIENCE_MS: Final = 3_000  # after a cancel: nothing of a look is worth waiting for


class Looker(QObject, Generic[R]):
    """At most one look at a time. The reports of earlier ones are kept for the configurations they are true of.

    A subclass says what to start, what a report depends on, and shows all this in `refresh`.
    """

    kind: type[R]
    tried = Signal(object, object)  # Key of the data; the Error that said that it cannot be read, None: it can

    def __init__(self, form: SetupForm, say: Callable[[TraindeckError], None], process: TrainerProcess | None) -> None:
        super().__init__(form)
        self._form, self._say = form, say
        self.looks: Looks[R] = Looks()
        self._stamps = Stamps()
        self.running: Look[R] | None = None
        self._data: Key = ()  # what the look that is running depends on in the data
        self._failed: tuple[Look[R], Outcome] | None = None  # the last one, where it ended without a report
        self._cancelled = False
        self.process = process or TrainerProcess(self)
        self.process.event.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    def arguments(self) -> list[str]:
        """The trainer's arguments for what the form says. Raises `TraindeckError` for a value that no run takes."""
        raise NotImplementedError

    def key_of_form(self, *, fresh: bool = False) -> Key:
        """What a report depends on, as it is now. `fresh`: also files that were looked at a moment ago."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Show what there is."""
        raise NotImplementedError

    # --- looking -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at what the form says, unless a look is under way."""
        if self._form.preset is None or self.running is not None or self.blocked:
            return
        try:
            arguments = self.arguments()
        except TraindeckError as error:
            self._say(error)
            return
        if self.process.start(arguments):
            self.running, self._failed, self._cancelled = Look(self.key_of_form(fresh=True), self.kind), None, False
            self._data = data_looks.key_of(self._form.values(), self._form.data, self._stamps.of(self._form.all_data))
            self.refresh()

    def cancel(self) -> None:
        """End the look without a report."""
        if self.running is not None and not self._cancelled:
            self._cancelled = True
            self.process.stop()
            QTimer.singleShot(_PATIENCE_MS, self, lambda look=self.running: self._end(look))
            self.refresh()

    def leave(self) -> None:
        """The window closes: the process goes with it."""
        self.process.blockSignals(True)
        self.process.close_input()
        self.process.kill()

    def _end(self, look: Look[R]) -> None:
        if self.running is look:
            self.process.kill()

    def _on_event(self, event: AnyEvent) -> None:
        if self.running is not None:
            self.running.add(event)
            self.refresh()

    def _on_finished(self, outcome: Outcome) -> None:
        look, self.running = self.running, None
        if look is None:
            return
        if look.report is not None:
            self.looks.keep(look)
        elif not self._cancelled:
            self._failed = look, outcome
            self.looks.drop(look.key)
        refused = look.error is not None and look.error.code.startswith("data.")
        if refused or look.report is not None:
            self.tried.emit(self._data, look.error if refused else None)
        self.refresh()

    # --- what is known -----------------------------------------------------------------------------------

    @property
    def blocked(self) -> str:
        """Why nothing can be looked at now; empty when it can."""
        return blocking_reason(self._form, ())

    @property
    def cancelling(self) -> bool:
        return self.running is not None and self._cancelled

    def found(self) -> tuple[Look[R] | None, bool]:
        """The look to show, and whether it is of what the form says."""
        return self.looks.show(None if self.blocked else self.key_of_form())

    def failure(self) -> str:
        """Why the last look at the chosen data ended without a report, in the current language; empty: it did not."""
        if self._failed is None:
            return ""
        look, outcome = self._failed
        if [part for part in self._data if isinstance(part, str)] != self._form.data:
            return ""
        if look.error is not None:
            return words.message(look.error.code, look.error.params)
        if outcome.failed_to_start:
            return self.tr("The trainer could not be started. Run the set-up again, then try once more.")
        return self.unexpected().format(code=outcome.exit_code, words=" ".join(outcome.last_words[-1:]))

    def unexpected(self) -> str:
        """That it ended without a word, with places for `{code}` and `{words}`."""
        raise NotImplementedError


class DataLooker(Looker[DataReport]):
    """The look at the chosen data, and its page."""

    kind = DataReport

    def __init__(self, form: SetupForm, say: Callable[[TraindeckError], None], process: TrainerProcess | None) -> None:
        super().__init__(form, say, process)
        self._page: DataPage | None = None
        self._ready: Ready | None = None

    def connect_page(self, page: DataPage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page = page
        page.look_asked.connect(self.start)
        page.cancel_asked.connect(self.cancel)

    def arguments(self) -> list[str]:
        form = self._form
        name = form.preset.name if form.preset else ""
        return command_line.preview(name, form.changes(), form.data, loaded=form.preset)

    def key_of_form(self, *, fresh: bool = False) -> Key:
        stamps = self._stamps.of(self._form.all_data, fresh=fresh)
        return data_looks.key_of(self._form.values(), self._form.data, stamps)

    def samples_per_epoch(self) -> tuple[int, bool] | None:
        """Sequences of one epoch of the chosen data, and whether that is exact; None: it was not looked at."""
        if self.blocked or not self.looks.known:
            return None
        wanted = data_looks.about_sequences(self.key_of_form())
        for look in self.looks.known:
            if look.report is not None and data_looks.about_sequences(look.key) == wanted:
                return look.report.samples_per_epoch, look.report.complete
        return None

    def display(self, ready: Ready | None) -> None:
        """Show what is known. `ready`: what the run on show trains on."""
        self._ready = ready
        self.refresh()

    def refresh(self) -> None:
        if self._page is None or not self._page.isVisible():
            return
        from app.views.data.page import DataState

        look, current = self.found()
        failure = "" if current else self.failure()  # of another configuration than the one that is shown
        self._page.display(DataState(look, current, self.running, self.cancelling, failure, self.blocked, self._ready))

    def unexpected(self) -> str:
        return self.tr("Looking at the data ended unexpectedly (code {code}). {words}")
