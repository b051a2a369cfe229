"""Drop target for data files, anywhere on the window."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDropEvent, QPainter, QPaintEvent, QPalette, QPen, QRegion
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import ElidedLabel, card, label, local_paths, set_object_name, vertical_layout

_BACKDROP_ALPHA: Final = 225  # of 255
_CARD_WIDTH: Final = 560  # pixels
_DRAG_EVENT_TYPES: Final = (QEvent.Type.DragEnter, QEvent.Type.DragMove)


class DropIndicator(QWidget):
    """Overlay that announces what a drop does. Files dropped on the widget `validation` become validation data."""

    dropped = Signal(list)  # paths
    dropped_for_validation = Signal(list)

    def __init__(self, window: QWidget, validation: QWidget) -> None:
        super().__init__(window)
        self._window, self._validation_widget = window, validation
        self._title = label("stateWord", centred=True)
        self._names = set_object_name(ElidedLabel(Qt.TextElideMode.ElideMiddle), "muted")
        self._names.setAlignment(Qt.AlignmentFlag.AlignCenter)
        content = vertical_layout()
        content.addWidget(self._title)
        content.addWidget(self._names)
        frame = card(content)
        frame.setFixedWidth(_CARD_WIDTH)
        QVBoxLayout(self).addWidget(frame, 0, Qt.AlignmentFlag.AlignCenter)
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
        for_validation = self._is_for_validation(event)
        self._title.setText(tr("window.drop_validation_data") if for_validation else tr("window.drop_training_data"))
        self._names.setText(_format_names(paths))
        if self.isHidden():
            self.setGeometry(self._window.rect())
            self.raise_()
            self.show()
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
        return "" if self.isHidden() else f"{self._title.text()}\n{self._names.text()}"

    def _validation_area(self) -> QRect:
        """Visible part of the validation data, in coordinates of the window."""
        visible = self._validation_widget.visibleRegion().boundingRect()
        return QRect(self._validation_widget.mapTo(self._window, visible.topLeft()), visible.size())

    def _is_for_validation(self, event: QDropEvent) -> bool:
        return self._validation_area().contains(event.position().toPoint())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, palette = QPainter(self), self.palette()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        backdrop = QColor(palette.color(QPalette.ColorRole.Window))
        backdrop.setAlpha(_BACKDROP_ALPHA)
        area = QRectF(self._validation_area()).adjusted(-4, -4, 4, 4)
        painter.setClipRegion(QRegion(self.rect()) - QRegion(area.toRect()))
        painter.fillRect(self.rect(), backdrop)
        painter.setClipping(False)
        painter.setPen(QPen(palette.color(QPalette.ColorRole.Highlight), 2, Qt.PenStyle.DashLine))
        margin = 1.5 * SPACING
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(margin, margin, -margin, -margin), 8, 8)
        painter.drawRoundedRect(area, 4, 4)


def _format_names(paths: list[str]) -> str:
    names = ", ".join(Path(path).name or path for path in paths[:3])
    return names if len(paths) <= 3 else tr("window.more_names", names=names, count=len(paths) - 3)


def _accept_as_copy(event: QDropEvent) -> None:
    """Accept as a copy: after a move, a file manager deletes the files."""
    event.setDropAction(Qt.DropAction.CopyAction)
    event.accept()
