"""A splitter whose dividers are moved by keys as well: Tab reaches them, the arrows move them."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSplitter, QSplitterHandle

from app.theme.tokens import SPACE

_STEP: Final = 3 * SPACE
_LINE: Final = 2  # pixels: of what shows that it has the focus
_BACK: Final = (Qt.Key.Key_Left, Qt.Key.Key_Up)
_ON: Final = (Qt.Key.Key_Right, Qt.Key.Key_Down)


class Splitter(QSplitter):
    """Its parts are never closed entirely."""

    def __init__(self, orientation: Qt.Orientation, width: int) -> None:
        super().__init__(orientation, childrenCollapsible=False, handleWidth=width)

    def createHandle(self) -> QSplitterHandle:  # noqa: N802 - Qt's name
        return _Divider(self.orientation(), self)

    def name(self, text: str) -> None:
        """What a screen reader says of its dividers."""
        for place in range(1, self.count()):
            self.handle(place).setAccessibleName(text)


class _Divider(QSplitterHandle):
    def __init__(self, orientation: Qt.Orientation, parent: QSplitter) -> None:
        super().__init__(orientation, parent)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        key = Qt.Key(event.key())
        if key in (*_BACK, *_ON):
            place = self.x() if self.orientation() is Qt.Orientation.Horizontal else self.y()
            self.moveSplitter(place + (_STEP if key in _ON else -_STEP))
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        super().paintEvent(event)
        if self.hasFocus():
            line = self.rect()
            if self.orientation() is Qt.Orientation.Horizontal:
                line.setWidth(_LINE)
            else:
                line.setHeight(_LINE)
            line.moveCenter(self.rect().center())
            QPainter(self).fillRect(line, self.palette().highlight())

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusOutEvent(event)
        self.update()
