"""Splitter whose handles can be moved with the keyboard: Tab selects a handle, arrow keys move it."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSplitter, QSplitterHandle

from app.theme.palette import SPACING

_KEY_STEP: Final = 3 * SPACING
_DECREASE_KEYS: Final = (Qt.Key.Key_Left, Qt.Key.Key_Up)
_INCREASE_KEYS: Final = (Qt.Key.Key_Right, Qt.Key.Key_Down)


class KeyboardSplitter(QSplitter):
    """Its children cannot be collapsed."""

    def __init__(self, orientation: Qt.Orientation, width: int) -> None:
        super().__init__(orientation, childrenCollapsible=False, handleWidth=width)

    def createHandle(self) -> QSplitterHandle:  # noqa: N802 - Qt's name
        return _SplitterHandle(self.orientation(), self)

    def set_handle_name(self, text: str) -> None:
        """Set the accessible name of the handles."""
        for index in range(1, self.count()):
            self.handle(index).setAccessibleName(text)


class _SplitterHandle(QSplitterHandle):
    def __init__(self, orientation: Qt.Orientation, parent: QSplitter) -> None:
        super().__init__(orientation, parent)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        key = Qt.Key(event.key())
        if key in (*_DECREASE_KEYS, *_INCREASE_KEYS):
            position = self.x() if self.orientation() is Qt.Orientation.Horizontal else self.y()
            self.moveSplitter(position + (_KEY_STEP if key in _INCREASE_KEYS else -_KEY_STEP))
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        super().paintEvent(event)
        if self.hasFocus():
            QPainter(self).fillRect(self.rect(), self.palette().highlight())
