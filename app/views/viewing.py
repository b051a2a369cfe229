"""A strip that says which earlier run is shown, with the way back and Resume."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from app.views import words
from app.views.strip import Strip
from app.views.widgets import button
from trainer_core.runs.run_dir import RunSummary


@dataclass(frozen=True, slots=True)
class Viewing:
    """An earlier run on show. `loaded` is the share of its events read so far."""

    summary: RunSummary
    loaded: float = 1.0
    can_resume: bool = False


class ViewingStrip(Strip):
    """Hidden while the window shows its own run."""

    back_pressed = Signal()
    resume_pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        self.resume, self.back = button("resumeViewed"), button("backToCurrent")
        super().__init__(self.resume, self.back, mode=Qt.TextElideMode.ElideMiddle, parent=parent)
        self._viewing: Viewing | None = None
        self.resume.clicked.connect(self.resume_pressed)
        self.back.clicked.connect(self.back_pressed)
        self.retranslate()

    def display(self, viewing: Viewing | None) -> None:
        if viewing == self._viewing:
            return
        self._viewing = viewing
        self.say("" if viewing is None else self._words(viewing))
        if viewing is not None:
            self.resume.setVisible(viewing.summary.resumable)
            self.resume.setEnabled(viewing.can_resume)

    def _words(self, viewing: Viewing) -> str:
        run = viewing.summary
        if viewing.loaded < 1.0:
            text = self.tr("Opening {name}: {share}")
            return text.format(name=run.name, share=f"{viewing.loaded:.0%}")
        text = self.tr("Showing the run {name}  ·  {state} at step {step}")
        return text.format(name=run.name, state=words.disk_state(run.state), step=words.count(run.step))

    def retranslate(self) -> None:
        self.resume.setText(self.tr("Resume this run"))
        self.back.setText(self.tr("Close"))
        viewing, self._viewing = self._viewing, None
        self.display(viewing)
