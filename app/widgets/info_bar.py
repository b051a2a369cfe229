"""Info bar: one line of text with buttons."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QVBoxLayout

from app.texts import tr
from app.theme.icons import IconName, pixmap
from app.theme.palette import SPACING, Palette
from app.widgets.basic import ElidedLabel, TranslatableWidget, horizontal_layout, push_button


class InfoBar(TranslatableWidget):
    """Hidden while its message is empty. `text_keys`: the texts of the buttons, by object name."""

    def __init__(
        self,
        text_keys: dict[str, str],
        *,
        icon_name: IconName | None = None,
        elide_mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
    ) -> None:
        super().__init__()
        self.text = ElidedLabel(elide_mode)
        self.buttons = {name: push_button(name) for name in text_keys}
        self._text_keys = text_keys
        self._icon_name, self._icon = icon_name, QLabel()
        self._icon.setVisible(icon_name is not None)
        frame = QFrame()
        frame.setObjectName("banner")
        row = horizontal_layout(self._icon, (self.text, 1), *self.buttons.values())
        row.setContentsMargins(SPACING + 4, SPACING // 2, SPACING, SPACING // 2)
        frame.setLayout(row)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.retranslate()
        self.hide()

    def set_message(self, text: str) -> None:
        self.text.setText(text)
        self.setVisible(bool(text))

    def retranslate(self) -> None:
        for name, button in self.buttons.items():
            button.setText(tr(self._text_keys[name]))

    def retheme(self, palette: Palette) -> None:
        if self._icon_name is not None:
            self._icon.setPixmap(pixmap(self._icon_name, palette.accent, self.devicePixelRatioF()))
