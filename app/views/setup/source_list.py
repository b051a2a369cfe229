"""Parts shared by the lists of training and validation data: the list itself and the dialogs that fill it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QEvent, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QPainter, QPaintEvent
from PySide6.QtWidgets import QFileDialog, QListWidget, QListWidgetItem, QWidget

from app.state.folders import first_there
from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import plain_tip

_ROWS = 2
_PATH = Qt.ItemDataRole.UserRole


def ask_files(parent: QWidget, title: str, kind: str, beside: Iterable[str]) -> list[str]:
    """A dialog for files, opened next to the first existing path in `beside`; its filter `kind` lists every format."""
    from trainer_core.data.formats import file_patterns  # imports take 20 ms that the start does not need

    all_files = QCoreApplication.translate("DataList", "All files (*)")
    filters = f"{kind} ({' '.join(file_patterns())});;{all_files}"
    short = QFileDialog.Option.HideNameFilterDetails
    paths, _ = QFileDialog.getOpenFileNames(parent, title, _folder(beside), filters, options=short)
    return [str(Path(path)) for path in paths]


def ask_folder(parent: QWidget, title: str, beside: Iterable[str]) -> list[str]:
    """A dialog for one folder; the result has at most one path."""
    path = QFileDialog.getExistingDirectory(parent, title, _folder(beside))
    return [str(Path(path))] if path else []


def _folder(beside: Iterable[str]) -> str:
    own = (path for path in beside if not path.startswith("builtin:"))
    return str(first_there(Path(path).parent for path in own) or Path.home())


class SourceList(QListWidget):
    """Files and folders by name. While empty, shows a hint. Drops go to the window (`app/views/dropping.py`)."""

    delete_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.hint = ""
        self.setObjectName("dataList")
        self.setSelectionMode(QListWidget.SelectionMode.ExtendedSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)

    def show_paths(self, paths: Sequence[str]) -> None:
        self.clear()
        for path in paths:
            item = QListWidgetItem(words.data_name(path))
            item.setData(_PATH, path)
            item.setToolTip(plain_tip(words.data_name(path)))
            self.addItem(item)

    def selected_paths(self) -> list[str]:
        return [str(item.data(_PATH)) for item in self.selectedItems()]

    def select_paths(self, paths: Sequence[str]) -> None:
        """Select these and no others."""
        for row in range(self.count()):
            item = self.item(row)
            item.setSelected(item.data(_PATH) in paths)

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(200, self.fontMetrics().lineSpacing() * _ROWS + 3 * SPACE)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(80, self.sizeHint().height())

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        if event.matches(QKeySequence.StandardKey.Delete):
            self.delete_pressed.emit()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        super().paintEvent(event)
        if self.count() == 0:
            painter = QPainter(self.viewport())
            painter.setPen(self.palette().placeholderText().color())
            painter.drawText(self.viewport().rect(), Qt.AlignmentFlag.AlignCenter, self.hint)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.viewport().update()
        super().changeEvent(event)
