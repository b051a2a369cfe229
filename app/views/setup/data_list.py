"""The list of files and folders to train on, with choosers and drag and drop."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDragMoveEvent, QDropEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import Retranslating, named, plain_tip

_ROWS = 2
_PATH = Qt.ItemDataRole.UserRole


class DataList(Retranslating):
    """What to train on. Emits whole lists of paths to add or remove; shows what `display` is given."""

    added = Signal(list)
    removed = Signal(list)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._paths: list[str] = []
        self.recent: list[str] = []
        self.list = _DropList()
        self.list.dropped.connect(self.added)
        self.list.itemSelectionChanged.connect(self._enable)
        self._add_file, self._add_folder = named(QPushButton(), "addFile"), named(QPushButton(), "addFolder")
        self._more, self._remove = named(QToolButton(), "moreData"), named(QPushButton(), "removeData")
        self._more.setText("▾")
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self._fill_menu)
        self._more.setMenu(self._menu)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._add_file.clicked.connect(self._ask_files)
        self._add_folder.clicked.connect(self._ask_folder)
        self._remove.clicked.connect(self._remove_selected)
        self._arrange()
        self.retranslate()
        self._enable()

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE // 2)
        for button in (self._add_file, self._add_folder, self._more):
            row.addWidget(button)
        row.addStretch(1)
        row.addWidget(self._remove)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE // 2)
        layout.addWidget(self.list)
        layout.addLayout(row)

    def display(self, paths: list[str]) -> None:
        """Show these sources."""
        self._paths = paths
        self.list.clear()
        for path in paths:
            item = QListWidgetItem(words.data_name(path))
            item.setData(_PATH, path)
            item.setToolTip(plain_tip(words.data_name(path)))
            self.list.addItem(item)
        self._enable()

    def retranslate(self) -> None:
        self.list.hint = self.tr("Drop files or folders here")
        self.list.setAccessibleName(self.tr("Data to train on"))
        self._add_file.setText(self.tr("Add file…"))
        self._add_folder.setText(self.tr("Add folder…"))
        self._more.setToolTip(self.tr("Built-in and recent data"))
        self._more.setAccessibleName(self.tr("Built-in and recent data"))
        self._remove.setText(self.tr("Remove"))
        self.display(self._paths)

    def _enable(self) -> None:
        self._remove.setEnabled(bool(self.list.selectedItems()))

    def _ask_files(self) -> None:
        kinds = "*.txt *.md *.jsonl *.json *.csv *.tsv *.parquet"
        filters = [self.tr("Training data ({kinds})").format(kinds=kinds), self.tr("All files (*)")]
        paths, _ = QFileDialog.getOpenFileNames(self, self.tr("Add files to train on"), "", ";;".join(filters))
        if paths:
            self.added.emit([str(Path(path)) for path in paths])

    def _ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, self.tr("Add a folder to train on"))
        if path:
            self.added.emit([str(Path(path))])

    def _remove_selected(self) -> None:
        self.removed.emit([str(item.data(_PATH)) for item in self.list.selectedItems()])

    def _fill_menu(self) -> None:
        self._menu.clear()
        for path in ("builtin:python", "builtin:tasks"):
            self._offer(path)
        if self.recent:
            self._menu.addSeparator()
        for path in self.recent[:8]:
            self._offer(path)

    def _offer(self, path: str) -> None:
        shown = self.fontMetrics().elidedText(words.data_name(path), Qt.TextElideMode.ElideMiddle, 420)
        action = self._menu.addAction(shown.replace("&", "&&"))
        action.triggered.connect(lambda: self.added.emit([path]))


class _DropList(QListWidget):
    """A list that takes files from the file manager, and says so while it is empty."""

    dropped = Signal(list)

    def __init__(self) -> None:
        super().__init__()
        self.hint = ""
        self.setObjectName("dataList")
        self.setAcceptDrops(True)
        self.setSelectionMode(QListWidget.SelectionMode.ExtendedSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(200, self.fontMetrics().lineSpacing() * _ROWS + 3 * SPACE)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(80, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        super().paintEvent(event)
        if self.count() == 0:
            painter = QPainter(self.viewport())
            painter.setPen(self.palette().placeholderText().color())
            painter.drawText(self.viewport().rect(), Qt.AlignmentFlag.AlignCenter, self.hint)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802 - Qt's name
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:  # noqa: N802 - Qt's name
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        paths = [str(Path(url.toLocalFile())) for url in event.mimeData().urls() if url.isLocalFile()]
        if paths:
            event.acceptProposedAction()
            self.dropped.emit(paths)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.viewport().update()
        super().changeEvent(event)
