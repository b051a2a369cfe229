"""Drop target for data files, anywhere on the window."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QFont, QPainter, QPaintEvent, QPalette, QPen, QRegion
from PySide6.QtWidgets import QWidget

from app.texts import tr
from app.theme.palette import SPACING

_BACKDROP_ALPHA: Final = 225  # of 255
_CARD_WIDTH: Final = 560  # pixels
_DRAG_EVENT_TYPES: Final = (QEvent.Type.DragEnter, QEvent.Type.DragMove)


class DropIndicator(QWidget):
    """Overlay that announces what a drop does. Files dropped on the widget `validation` become validation data."""

    dropped = Signal(list)  # paths
    dropped_for_validation = Signal(list)

    def __init__(self, window: QWidget, validation: QWidget) -> None:
        super().__init__(window)
        self._validation_widget = validation
        self._lines = ("", "")
        self.hide()
        window.setAcceptDrops(True)
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        kind = event.type()
        if kind in _DRAG_EVENT_TYPES and isinstance(event, QDragEnterEvent | QDropEvent):
            return self._on_drag(event)
        if kind == QEvent.Type.DragLeave:
            self.hide()
        elif kind == QEvent.Type.Drop and isinstance(event, QDropEvent):
            return self._on_drop(event)
        return super().eventFilter(watched, event)

    def _on_drag(self, event: QDropEvent) -> bool:
        paths = local_paths(event)
        if not paths:
            return False
        lines = self._format_lines(paths, for_validation=self._is_for_validation(event))
        if self.isHidden() or lines != self._lines:
            self._lines = lines
            self._show_over_window()
        _accept_as_copy(event)
        return True

    def _on_drop(self, event: QDropEvent) -> bool:
        self.hide()
        paths = local_paths(event)
        if not paths:
            return False
        _accept_as_copy(event)
        (self.dropped_for_validation if self._is_for_validation(event) else self.dropped).emit(paths)
        return True

    @property
    def text(self) -> str:
        """The announcement, or empty while nothing is dragged."""
        return "" if self.isHidden() else "\n".join(self._lines)

    def _format_lines(self, paths: list[str], *, for_validation: bool) -> tuple[str, str]:
        names = ", ".join(Path(path).name or path for path in paths[:3])
        if len(paths) > 3:
            names = tr("window.names_and_count_more", names=names, count=len(paths) - 3)
        return tr("window.drop_use_as_validation_data") if for_validation else tr("window.drop_train_on"), names

    def _show_over_window(self) -> None:
        self.setGeometry(self._window().rect())
        self.raise_()
        self.show()
        self.update()

    def _window(self) -> QWidget:
        window = self.parentWidget()
        assert window is not None
        return window

    def _validation_area(self) -> QRect:
        """Visible part of the validation data, in coordinates of the window."""
        seen = self._validation_widget.visibleRegion().boundingRect()
        return QRect(self._validation_widget.mapTo(self._window(), seen.topLeft()), seen.size())

    def _is_for_validation(self, event: QDropEvent) -> bool:
        return self._validation_area().contains(event.position().toPoint())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, palette = QPainter(self), self.palette()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        veil = QColor(palette.color(QPalette.ColorRole.Window))
        veil.setAlpha(_BACKDROP_ALPHA)
        area = QRectF(self._validation_area()).adjusted(-4, -4, 4, 4)
        painter.setClipRegion(QRegion(self.rect()) - QRegion(area.toRect()))
        painter.fillRect(self.rect(), veil)
        painter.setClipping(False)
        painter.setPen(QPen(palette.color(QPalette.ColorRole.Highlight), 2, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(*(2 * (1.5 * SPACING,)), *(2 * (-1.5 * SPACING,))), 8, 8)
        painter.drawRoundedRect(area, 4, 4)
        middle = self.rect().center().y()
        width = min(_CARD_WIDTH, self.width() - 8 * SPACING)
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
        side = (self.width() - min(_CARD_WIDTH, self.width() - 8 * SPACING)) // 2 + 2 * SPACING
        room = self.rect().adjusted(side, 0, -side, 0)
        room.setTop(y - 20)
        room.setHeight(40)
        shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignCenter, shown)


def _accept_as_copy(event: QDropEvent) -> None:
    """Accept as a copy: after a move, a file manager deletes the files."""
    event.setDropAction(Qt.DropAction.CopyAction)
    event.accept()


def local_paths(event: QDropEvent) -> list[str]:
    """Return the local files and folders of an event."""
    return [str(Path(url.toLocalFile())) for url in event.mimeData().urls() if url.isLocalFile()]
