"""Where the arithmetic of a step is: parts of the model with their share. Hidden until it was counted."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QProgressBar, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import ElidedLabel, clear, heading, label
from trainer_core import engine_words
from trainer_core.protocol import FlopsProfile

_FINE: Final = 1000  # steps of a bar


class ProfileCard(QFrame):
    """The layers added up, so that it is as short for a large model as for a small one."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self._title, self.facts = label("section"), ElidedLabel()
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(2 * SPACE)
        self._grid.setVerticalSpacing(SPACE // 2)
        self._grid.setColumnStretch(1, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE + 4, SPACE, SPACE + 4, SPACE)
        layout.setSpacing(SPACE)
        layout.addLayout(heading(self._title, self.facts))
        layout.addLayout(self._grid)

    def display(self, profile: FlopsProfile | None) -> None:
        """Show it in the current language."""
        self.setVisible(profile is not None)
        clear(self._grid)
        if profile is None:
            return
        self._title.setText(QCoreApplication.translate("Profile", "Arithmetic of a micro-batch"))
        text = QCoreApplication.translate("Profile", "step {step}: {total}; the formula says {formula}")
        total, formula = engine_words.flops(profile.total), engine_words.flops(profile.formula)
        self.facts.setText(text.format(step=words.count(profile.step), total=total, formula=formula))
        for row, part in enumerate(engine_words.by_part(profile.rows)):
            self._row(row, part)

    def _row(self, row: int, part: engine_words.Part) -> None:
        name, amount, share = label(), label("muted"), label()
        name.setTextFormat(Qt.TextFormat.PlainText)
        name.setText(part.module + (f"  ×{part.count}" if part.count > 1 else ""))
        amount.setText(engine_words.flops(part.forward + part.backward))
        share.setText(words.share(part.share, 1.0))
        bar = QProgressBar(textVisible=False, maximum=_FINE)
        bar.setValue(round(_FINE * part.share))
        bar.setAccessibleName(part.module)
        right = Qt.AlignmentFlag.AlignRight
        self._grid.addWidget(name, row, 0)
        self._grid.addWidget(bar, row, 1)
        self._grid.addWidget(share, row, 2, right)
        self._grid.addWidget(amount, row, 3, right)
