"""Info bar: one line of text with buttons."""

from __future__ import annotations

from PySide6.QtCore import Qt

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import ElidedLabel, TranslatableWidget, horizontal_layout, push_button


class InfoBar(TranslatableWidget):
    """Hidden while its message is empty. `text_keys`: the texts of the buttons, by object name."""

    def __init__(self, text_keys: dict[str, str]) -> None:
        super().__init__()
        self.text = ElidedLabel(Qt.TextElideMode.ElideMiddle)  # names of runs differ at their ends
        self.buttons = {name: push_button(name) for name in text_keys}
        self._text_keys = text_keys
        self.setObjectName("banner")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        row = horizontal_layout((self.text, 1), *self.buttons.values())
        row.setContentsMargins(SPACING + 4, SPACING // 2, SPACING, SPACING // 2)
        self.setLayout(row)
        self.retranslate()
        self.hide()

    def set_message(self, text: str) -> None:
        self.text.setText(text)
        self.setVisible(bool(text))

    def retranslate(self) -> None:
        for name, button in self.buttons.items():
            button.setText(tr(self._text_keys[name]))
