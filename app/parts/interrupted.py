"""The run that broke off while no window watched: killed, or the machine went down. Offered once, at the start."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.state.runs.history import History
from app.state.settings import Settings
from app.views.going_on import InterruptedStrip
from trainer_core.runs.run_dir import RunSummary


class Interrupted(QObject):
    """Shows the newest of them that was not decided about."""

    resume_asked = Signal(Path)

    def __init__(self, strip: InterruptedStrip, history: History, settings: Settings) -> None:
        super().__init__(strip)
        self._strip, self._history, self._settings = strip, history, settings
        self._offered: RunSummary | None = None
        self._looked = False
        strip.resume_pressed.connect(self._resume)
        strip.dismiss_pressed.connect(self.dismiss)

    def look(self) -> None:
        """The runs folder has been read: offer one, the first time."""
        if self._looked:
            return
        self._looked = True
        known = self._settings.dismissed
        waiting = [run for run in self._history.runs if run.state == "interrupted" and run.resumable]
        self._offered = next((run for run in waiting if str(run.path) not in known), None)
        self._strip.display(self._offered)

    def dismiss(self) -> None:
        """A person has decided, also about older ones: they stay on the page of runs."""
        broken = [str(run.path) for run in self._history.runs if run.state == "interrupted"]
        if self._offered is not None:
            self._settings.dismissed = broken
        self.put_away()

    def put_away(self) -> None:
        """Something is trained now."""
        self._offered, self._looked = None, True
        self._strip.display(None)

    def _resume(self) -> None:
        run = self._offered
        self.put_away()
        if run is not None:
            self.resume_asked.emit(run.path)
