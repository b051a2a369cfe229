"""A strip that says which earlier run is shown, with the way back and Resume."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import ElidedLabel, Retranslating, named
from trainer_core.run_dir import RunSummary


@dataclass(frozen=True, slots=True)
class Viewing:
    """An earlier run on show. `loaded` is the share of its events read so far."""

    summary: RunSummary
    loaded: float = 1.0
    can_resume: bool = False


class ViewingStrip(Retranslating):
    """Hidden while the window shows its own run."""

    back_pressed = Signal()
    resume_pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._viewing: Viewing | None = None
        self._text = ElidedLabel(Qt.TextElideMode.ElideMiddle)
        self.resume, self.back = named(QPushButton(), "resumeViewed"), named(QPushButton(), "backToCurrent")
        row = QHBoxLayout()
        row.setContentsMargins(SPACE + 4, SPACE // 2, SPACE, SPACE // 2)
        row.setSpacing(SPACE)
        row.addWidget(self._text, 1)
        row.addWidget(self.resume)
        row.addWidget(self.back)
        frame = named(QFrame(), "banner")
        frame.setLayout(row)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.resume.clicked.connect(self.resume_pressed)
        self.back.clicked.connect(self.back_pressed)
        self.hide()
        self.retranslate()

    def display(self, viewing: Viewing | None) -> None:
        if viewing == self._viewing:
            return
        self._viewing = viewing
        self.setVisible(viewing is not None)
        if viewing is not None:
            self._text.setText(self._words(viewing))
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
