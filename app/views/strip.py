"""One line above the pages, with what can be done about it: an earlier run on show, a restart, a run that broke off."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.theme.icons import IconName, pixmap
from app.theme.tokens import SPACE, Tokens
from app.views.widgets import ElidedLabel, Retranslating, named


class Strip(Retranslating):
    """A sentence and its buttons. Hidden until `say` is given one."""

    def __init__(
        self,
        *buttons: QPushButton,
        sign: IconName | None = None,
        mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.text = ElidedLabel(mode)
        self._sign, self._icon = sign, QLabel()
        self._icon.setVisible(sign is not None)
        row = QHBoxLayout()
        row.setContentsMargins(SPACE + 4, SPACE // 2, SPACE, SPACE // 2)
        row.setSpacing(SPACE)
        row.addWidget(self._icon)
        row.addWidget(self.text, 1)
        for button in buttons:
            row.addWidget(button)
        frame = named(QFrame(), "banner")
        frame.setLayout(row)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.hide()

    def say(self, text: str) -> None:
        """Show this; an empty text hides the strip."""
        self.text.setText(text)
        self.setVisible(bool(text))

    def retranslate(self) -> None:
        """A strip that is worded from outside has no words of its own."""

    def retheme(self, tokens: Tokens) -> None:
        if self._sign is not None:
            self._icon.setPixmap(pixmap(self._sign, tokens.accent, self.devicePixelRatioF()))
