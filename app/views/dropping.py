"""Files and folders that are dropped anywhere on the window: what would happen is said while they hover over it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QFont, QPainter, QPaintEvent, QPalette, QPen
from PySide6.QtWidgets import QWidget

from app.theme.tokens import SPACE

_VEIL: Final = 225  # of 255: how much the window behind is covered
_CARD: Final = 560  # pixels: width of what is said
_ENTER: Final = (QEvent.Type.DragEnter, QEvent.Type.DragMove)


class DropVeil(QWidget):
    """Lies over the window while files are dragged there."""

    dropped = Signal(list)  # paths

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._lines = ("", "")
        self.hide()
        window.setAcceptDrops(True)
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        kind = event.type()
        if kind in _ENTER and isinstance(event, QDragEnterEvent | QDropEvent):
            return self._hover(event)
        if kind == QEvent.Type.DragLeave:
            self.hide()
        elif kind == QEvent.Type.Drop and isinstance(event, QDropEvent):
            return self._drop(event)
        return super().eventFilter(watched, event)

    def _hover(self, event: QDropEvent) -> bool:
        paths = local_paths(event)
        if not paths:
            return False
        if self.isHidden():
            self._say(paths)
        _accept(event)
        return True

    def _drop(self, event: QDropEvent) -> bool:
        self.hide()
        paths = local_paths(event)
        if not paths:
            return False
        _accept(event)
        self.dropped.emit(paths)
        return True

    @property
    def text(self) -> str:
        """What is said; empty while nothing hovers."""
        return "" if self.isHidden() else "\n".join(self._lines)

    def _say(self, paths: list[str]) -> None:
        names = ", ".join(Path(path).name or path for path in paths[:3])
        more = self.tr("{names} and {count} more").format(names=names, count=len(paths) - 3)
        self._lines = self.tr("Drop to train on it"), more if len(paths) > 3 else names
        window = self.parentWidget()
        assert window is not None
        self.setGeometry(window.rect())
        self.raise_()
        self.show()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, palette = QPainter(self), self.palette()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        veil = QColor(palette.color(QPalette.ColorRole.Window))
        veil.setAlpha(_VEIL)
        painter.fillRect(self.rect(), veil)
        painter.setPen(QPen(palette.color(QPalette.ColorRole.Highlight), 2, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(*(2 * (1.5 * SPACE,)), *(2 * (-1.5 * SPACE,))), 8, 8)
        middle = self.rect().center().y()
        width = min(_CARD, self.width() - 8 * SPACE)
        painter.setPen(QPen(palette.color(QPalette.ColorRole.Mid), 1))
        painter.setBrush(palette.color(QPalette.ColorRole.Button))
        painter.drawRoundedRect(QRectF((self.width() - width) / 2, middle - 56, width, 112), 8, 8)
        self._draw(painter, self._lines[0], middle - 14, 15, palette.color(QPalette.ColorRole.WindowText))
        self._draw(painter, self._lines[1], middle + 16, 10, palette.color(QPalette.ColorRole.PlaceholderText))

    def _draw(self, painter: QPainter, text: str, y: int, points: int, colour: QColor) -> None:
        font = QFont(self.font())
        font.setPointSize(points)
        painter.setFont(font)
        painter.setPen(colour)
        side = (self.width() - min(_CARD, self.width() - 8 * SPACE)) // 2 + 2 * SPACE
        room = self.rect().adjusted(side, 0, -side, 0)
        room.setTop(y - 20)
        room.setHeight(40)
        shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignCenter, shown)


def _accept(event: QDropEvent) -> None:
    """As a copy, whatever the file manager proposes: what is moved would be taken away there."""
    event.setDropAction(Qt.DropAction.CopyAction)
    event.accept()


def local_paths(event: QDropEvent) -> list[str]:
    """The files and folders of this machine that an event carries."""
    return [str(Path(url.toLocalFile())) for url in event.mimeData().urls() if url.isLocalFile()]
