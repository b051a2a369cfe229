"""Files and folders that are dropped anywhere on the window: what would happen is said while they hover over it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QFont, QPainter, QPaintEvent, QPalette, QPen, QRegion
from PySide6.QtWidgets import QWidget

from app.theme.tokens import SPACE

_VEIL: Final = 225  # of 255: how much the window behind is covered
_CARD: Final = 560  # pixels: width of what is said
_ENTER: Final = (QEvent.Type.DragEnter, QEvent.Type.DragMove)


class DropVeil(QWidget):
    """Lies over the window while files are dragged there. `validation`: where what is dropped is validation data."""

    dropped = Signal(list)  # paths
    dropped_for_validation = Signal(list)

    def __init__(self, window: QWidget, validation: QWidget) -> None:
        super().__init__(window)
        self._validation = validation
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
        said = self._words(paths, for_validation=self._is_for_validation(event))
        if self.isHidden() or said != self._lines:
            self._lines = said
            self._cover()
        _accept(event)
        return True

    def _drop(self, event: QDropEvent) -> bool:
        self.hide()
        paths = local_paths(event)
        if not paths:
            return False
        _accept(event)
        (self.dropped_for_validation if self._is_for_validation(event) else self.dropped).emit(paths)
        return True

    @property
    def text(self) -> str:
        """What is said; empty while nothing hovers."""
        return "" if self.isHidden() else "\n".join(self._lines)

    def _words(self, paths: list[str], *, for_validation: bool) -> tuple[str, str]:
        names = ", ".join(Path(path).name or path for path in paths[:3])
        more = self.tr("{names} and {count} more").format(names=names, count=len(paths) - 3)
        what = self.tr("Drop to use it as validation data") if for_validation else self.tr("Drop to train on it")
        return what, more if len(paths) > 3 else names

    def _cover(self) -> None:
        self.setGeometry(self._window().rect())
        self.raise_()
        self.show()
        self.update()

    def _window(self) -> QWidget:
        window = self.parentWidget()
        assert window is not None
        return window

    def _validation_area(self) -> QRect:
        """What can be seen of the list of validation data, in the coordinates of the window."""
        seen = self._validation.visibleRegion().boundingRect()
        return QRect(self._validation.mapTo(self._window(), seen.topLeft()), seen.size())

    def _is_for_validation(self, event: QDropEvent) -> bool:
        return self._validation_area().contains(event.position().toPoint())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, palette = QPainter(self), self.palette()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        veil = QColor(palette.color(QPalette.ColorRole.Window))
        veil.setAlpha(_VEIL)
        area = QRectF(self._validation_area()).adjusted(-4, -4, 4, 4)
        painter.setClipRegion(QRegion(self.rect()) - QRegion(area.toRect()))
        painter.fillRect(self.rect(), veil)
        painter.setClipping(False)
        painter.setPen(QPen(palette.color(QPalette.ColorRole.Highlight), 2, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(*(2 * (1.5 * SPACE,)), *(2 * (-1.5 * SPACE,))), 8, 8)
        painter.drawRoundedRect(area, 4, 4)
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
