"""Info bar: one line of text with buttons."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout

from app.theme.icons import IconName, pixmap
from app.theme.palette import SPACING, Palette
from app.widgets.basic import ElidedLabel, TranslatableWidget, set_object_name


class InfoBar(TranslatableWidget):
    """Hidden while its message is empty."""

    def __init__(
        self,
        *buttons: QPushButton,
        icon_name: IconName | None = None,
        elide_mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
    ) -> None:
        super().__init__()
        self.text = ElidedLabel(elide_mode)
        self._icon_name, self._icon = icon_name, QLabel()
        self._icon.setVisible(icon_name is not None)
        frame = set_object_name(QFrame(), "banner")
        row = QHBoxLayout(frame)
        row.setContentsMargins(SPACING + 4, SPACING // 2, SPACING, SPACING // 2)
        row.setSpacing(SPACING)
        row.addWidget(self._icon)
        row.addWidget(self.text, 1)
        for button in buttons:
            row.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.hide()

    def set_message(self, text: str) -> None:
        self.text.setText(text)
        self.setVisible(bool(text))

    def retranslate(self) -> None:
        """Subclasses with texts of their own override this."""

    def retheme(self, palette: Palette) -> None:
        if self._icon_name is not None:
            self._icon.setPixmap(pixmap(self._icon_name, palette.accent, self.devicePixelRatioF()))
