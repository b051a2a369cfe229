"""Offers, once after the start, to resume a run whose trainer was killed."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.history.run_list import RunHistory
from app.core.settings import Settings
from app.window.info_bars import InterruptedRunBar
from trainer_core.runs.run_dir import RunSummary


class InterruptedRunController(QObject):
    """Offers the newest interrupted run that was not dismissed before."""

    resume_requested = Signal(Path)

    def __init__(self, bar: InterruptedRunBar, history: RunHistory, settings: Settings) -> None:
        super().__init__(bar)
        self._bar, self._history, self._settings = bar, history, settings
        self._offered: RunSummary | None = None
        self._offer_done = False
        bar.resume_pressed.connect(self._resume)
        bar.dismiss_pressed.connect(self.dismiss)

    def offer_newest(self) -> None:
        """Call this when the runs are listed; only the first call has an effect."""
        if self._offer_done:
            return
        self._offer_done = True
        known = self._settings.dismissed
        waiting = [run for run in self._history.runs if run.state == "interrupted" and run.resumable]
        self._offered = next((run for run in waiting if str(run.path) not in known), None)
        self._bar.display(self._offered)

    def dismiss(self) -> None:
        """Offer none of the interrupted runs again. They stay on the runs page."""
        broken = [str(run.path) for run in self._history.runs if run.state == "interrupted"]
        if self._offered is not None:
            self._settings.dismissed = broken
        self.hide()

    def hide(self) -> None:
        self._offered, self._offer_done = None, True
        self._bar.display(None)

    def _resume(self) -> None:
        run = self._offered
        self.hide()
        if run is not None:
            self.resume_requested.emit(run.path)
