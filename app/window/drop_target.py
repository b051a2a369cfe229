"""Drop target for data files, anywhere on the window."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QRect, Qt, Signal
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QLabel, QWidget

from app.texts import tr
from app.widgets import formatting
from app.widgets.basic import local_paths


class DropIndicator(QLabel):
    """Announces what a drop does. Files dropped on the widget `validation` become validation data."""

    dropped = Signal(list)  # paths
    dropped_for_validation = Signal(list)

    def __init__(self, window: QWidget, validation: QWidget) -> None:
        super().__init__(window, alignment=Qt.AlignmentFlag.AlignCenter, textFormat=Qt.TextFormat.PlainText)
        self._window, self._validation_widget = window, validation
        self.setObjectName("dropIndicator")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()
        window.setAcceptDrops(True)
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if event.type() in (QEvent.Type.DragLeave, QEvent.Type.Drop):
            self.clear()
            self.hide()
        if isinstance(event, QDropEvent) and (paths := local_paths(event)):  # also the class of drag events
            event.setDropAction(Qt.DropAction.CopyAction)  # after a move, a file manager deletes the files
            event.accept()
            for_validation = self._validation_area().contains(event.position().toPoint())
            if event.type() == QEvent.Type.Drop:
                (self.dropped_for_validation if for_validation else self.dropped).emit(paths)
            else:
                what = tr("window.drop_validation_data") if for_validation else tr("window.drop_training_data")
                self._announce(f"{what}\n{_format_names(paths)}")
            return True
        return super().eventFilter(watched, event)

    def _announce(self, text: str) -> None:
        self.setText(text)
        size = self.sizeHint().boundedTo(self._window.size())
        area = QRect(self._window.rect().center(), size).translated(-size.width() // 2, -size.height() // 2)
        self.setGeometry(area)
        self.raise_()
        self.show()

    def _validation_area(self) -> QRect:
        """Visible part of the validation data, in coordinates of the window."""
        visible = self._validation_widget.visibleRegion().boundingRect()
        return QRect(self._validation_widget.mapTo(self._window, visible.topLeft()), visible.size())


def _format_names(paths: list[str]) -> str:
    names = formatting.join_items(Path(path).name or path for path in paths[:3])
    return names if len(paths) <= 3 else tr("window.more_names", names=names, count=len(paths) - 3)
