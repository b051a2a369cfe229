"""The look at the chosen data: a trainer process of its own, beside whatever run is going on, and its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QObject, QTimer

from app.services.trainer_process import Outcome, TrainerProcess
from app.state import command_line
from app.state.data_looks import Key, Look, Looks, Stamps, key_of
from app.views import words
from app.views.data.page import DataPage, DataState
from app.views.setup.form import SetupForm
from app.views.setup.reason import blocking_reason
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent, Ready

_PATIENCE_MS: Final = 3_000  # after a cancel: nothing of a look is worth waiting for


class DataLooker(QObject):
    """At most one look at a time. The reports of earlier ones are kept for the configurations they are true of."""

    def __init__(self, form: SetupForm, say: Callable[[TraindeckError], None], process: TrainerProcess | None) -> None:
        super().__init__(form)
        self._form, self._say = form, say
        self.looks = Looks()
        self._stamps = Stamps()
        self.running: Look | None = None
        self._failed: tuple[Look, Outcome] | None = None  # the last one, where it ended without a report
        self._cancelled = False
        self._page: DataPage | None = None
        self._ready: Ready | None = None
        self.process = process or TrainerProcess(self)
        self.process.event.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    def connect_page(self, page: DataPage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page = page
        page.look_asked.connect(self.start)
        page.cancel_asked.connect(self.cancel)

    # --- looking -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at what the form says, unless a look is under way."""
        form = self._form
        if form.preset is None or self.running is not None or blocking_reason(form, ()):
            return
        try:
            arguments = command_line.preview(form.preset.name, form.changes(), form.data, loaded=form.preset)
        except TraindeckError as error:
            self._say(error)
            return
        if self.process.start(arguments):
            self.running, self._failed, self._cancelled = Look(self._key(fresh=True)), None, False
            self.display(self._ready)

    def cancel(self) -> None:
        """End the look without a report."""
        if self.running is not None and not self._cancelled:
            self._cancelled = True
            self.process.stop()
            QTimer.singleShot(_PATIENCE_MS, self, lambda look=self.running: self._end(look))
            self.display(self._ready)

    def leave(self) -> None:
        """The window closes: the process goes with it."""
        self.process.blockSignals(True)
        self.process.close_input()
        self.process.kill()

    def _end(self, look: Look) -> None:
        if self.running is look:
            self.process.kill()

    def _on_event(self, event: AnyEvent) -> None:
        if self.running is not None:
            self.running.add(event)
            self.display(self._ready)

    def _on_finished(self, outcome: Outcome) -> None:
        look, self.running = self.running, None
        if look is None:
            return
        if look.report is not None:
            self.looks.keep(look)
        elif not self._cancelled:
            self._failed = look, outcome
            self.looks.drop(look.key)
        self.display(self._ready)

    # --- showing -----------------------------------------------------------------------------------------

    def display(self, ready: Ready | None) -> None:
        """Show what is known, where it can be seen. `ready`: what the run on show trains on."""
        self._ready = ready
        if self._page is None or not self._page.isVisible():
            return
        blocked = blocking_reason(self._form, ())
        look, current = self.looks.show(None if blocked else self._key())
        cancelling = self.running is not None and self._cancelled
        failure = "" if current else self._failure()  # of another configuration than the one that is shown
        self._page.display(DataState(look, current, self.running, cancelling, failure, blocked, ready))

    def _key(self, *, fresh: bool = False) -> Key:
        own = self._form.preset.knobs if self._form.preset else {}
        stamps = self._stamps.of(self._form.data, fresh=fresh)
        return key_of({**own, **self._form.changes()}, self._form.data, stamps)

    def _failure(self) -> str:
        """Why there is no report, in the current language."""
        if self._failed is None:
            return ""
        look, outcome = self._failed
        if look.error is not None:
            return words.message(look.error.code, look.error.params)
        if outcome.failed_to_start:
            return self.tr("The trainer could not be started. Run the set-up again, then try once more.")
        text = self.tr("Looking at the data ended unexpectedly (code {code}). {words}")
        return text.format(code=outcome.exit_code, words=" ".join(outcome.last_words[-1:]))
