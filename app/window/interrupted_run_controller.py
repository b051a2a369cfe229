"""Offers, once after the start, to resume a run whose trainer was killed."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.history.run_list import RunHistory
from app.core.settings import Settings
from app.texts import tr
from app.widgets import formatting
from app.widgets.info_bar import InfoBar
from trainer_core.runs.run_dir import RunSummary


class InterruptedRunController(QObject):
    """Offers the newest interrupted run that was not dismissed before."""

    resume_requested = Signal(Path)

    def __init__(self, bar: InfoBar, history: RunHistory, settings: Settings) -> None:
        super().__init__(bar)
        self._bar, self._history, self._settings = bar, history, settings
        self._offered: RunSummary | None = None
        self._offer_done = False
        bar.buttons["resumeInterrupted"].clicked.connect(self._resume)
        bar.buttons["dismissInterrupted"].clicked.connect(self._dismiss)

    def offer_newest(self) -> None:
        """Call this when the runs are listed; only the first call has an effect."""
        if self._offer_done:
            return
        self._offer_done = True
        known = self._settings.dismissed
        interrupted = [run for run in self._history.runs if run.state == "interrupted" and run.resumable]
        self._offered = next((run for run in interrupted if str(run.path) not in known), None)
        self.refresh()

    def refresh(self) -> None:
        run = self._offered
        if run is None:
            self._bar.set_message("")
            return
        step, when = formatting.format_count(run.step), formatting.format_timestamp(run.started + run.seconds)
        self._bar.set_message(tr("window.run_interrupted", name=run.name, step=step, when=when))

    def hide(self) -> None:
        self._offered, self._offer_done = None, True
        self.refresh()

    def _dismiss(self) -> None:
        """Offer none of the interrupted runs again. They stay on the runs page."""
        self._settings.dismissed = [str(run.path) for run in self._history.runs if run.state == "interrupted"]
        self.hide()

    def _resume(self) -> None:
        run = self._offered
        self.hide()
        if run is not None:
            self.resume_requested.emit(run.path)
