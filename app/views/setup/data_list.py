"""The list of files and folders to train on, with choosers, and what they seem to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QEvent, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QPainter, QPaintEvent
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

from app.state.data_glance import Glance
from app.state.folders import first_there
from app.theme.tokens import SPACE
from app.views import data_words, words
from app.views.widgets import ElidedLabel, Retranslating, SignButton, button, hand_over, named, plain_tip, restyle

_ROWS = 2
_AS_WRITTEN = QKeySequence.SequenceFormat.NativeText
_PATH = Qt.ItemDataRole.UserRole


class DataList(Retranslating):
    """What to train on. Emits whole lists of paths to add or remove; shows what `display` is given."""

    added = Signal(list)
    removed = Signal(list)
    look_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._paths: list[str] = []
        self.recent: list[str] = []
        self._glance: Glance | None = None  # None: not known yet
        self.list = SourceList()
        self.list.itemSelectionChanged.connect(self._enable)
        self._add_file, self._add_folder = named(QPushButton(), "addFile"), named(QPushButton(), "addFolder")
        self._more, self._remove = SignButton("unfold", "moreData"), named(QPushButton(), "removeData")
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self._fill_menu)
        self._more.setMenu(self._menu)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.seen, self.look = ElidedLabel(), button("link")
        self.seen.setObjectName("muted")
        self.look.clicked.connect(self.look_asked)
        self._add_file.clicked.connect(self.ask_files)
        self._add_folder.clicked.connect(self.ask_folder)
        self._remove.clicked.connect(self._remove_selected)
        self.list.delete_pressed.connect(self._remove_selected)
        self._arrange()
        self.retranslate()
        self._enable()

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE // 2)
        for adding in (self._add_file, self._add_folder, self._more):
            row.addWidget(adding)
        row.addStretch(1)
        row.addWidget(self._remove)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE // 2)
        below = QHBoxLayout()
        below.setSpacing(SPACE)
        below.addWidget(self.seen, 1)
        below.addWidget(self.look)
        layout.addWidget(self.list)
        layout.addLayout(below)
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
        self.show_glance(None)

    def show_glance(self, glance: Glance | None) -> None:
        """Say what the sources seem to be; None: that is not known yet."""
        self._glance = glance
        own = [path for path in self._paths if not path.startswith("builtin:")]
        said, missing = data_words.seen(glance, own, self._paths)
        self.seen.setText(said)
        name = "warnText" if missing else "muted"
        if self.seen.objectName() != name:
            restyle(named(self.seen, name))
        self.look.setEnabled(bool(self._paths))

    def select(self, paths: Sequence[str]) -> None:
        """Choose these sources and no others."""
        for row in range(self.list.count()):
            item = self.list.item(row)
            item.setSelected(item.data(_PATH) in paths)

    def retranslate(self) -> None:
        glance = self._glance
        self.list.hint = self.tr("Drop files or folders here")
        self.list.setAccessibleName(self.tr("Data to train on"))
        self._add_file.setText(self.tr("Add file…"))
        self._add_folder.setText(self.tr("Add folder…"))
        self._more.setToolTip(self.tr("Built-in and recent data"))
        self._more.setAccessibleName(self.tr("Built-in and recent data"))
        self._remove.setText(self.tr("Remove"))
        self._remove.setToolTip(QKeySequence(QKeySequence.StandardKey.Delete).toString(_AS_WRITTEN))
        self.look.setText(self.tr("Look at it"))
        self.look.setToolTip(self.tr("Read some of the data, and show what a model would learn from"))
        self.display(self._paths)
        self.show_glance(glance)

    def _enable(self) -> None:
        self._remove.setEnabled(bool(self.list.selectedItems()))

    def ask_files(self) -> None:
        paths = ask_data_files(self, self.tr("Add files to train on"), self.tr("Training data"), self._folder())
        if paths:
            self.added.emit(paths)

    def ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, self.tr("Add a folder to train on"), self._folder())
        if path:
            self.added.emit([str(Path(path))])

    def _folder(self) -> str:
        """Where to look for more: beside what was added or trained on last."""
        own = [path for path in (*reversed(self._paths), *self.recent) if not path.startswith("builtin:")]
        return str(first_there(Path(path).parent for path in own) or Path.home())

    def _remove_selected(self) -> None:
        if chosen := self.list.selectedItems():
            hand_over(self._remove, self.list)
            self.removed.emit([str(item.data(_PATH)) for item in chosen])

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


def ask_data_files(parent: QWidget, title: str, kind: str, folder: str) -> list[str]:
    """A file dialog for data: its filter named `kind` lists every format that the trainer reads."""
    from trainer_core.data.formats import file_patterns  # imports take 20 ms that the start does not need

    all_files = QCoreApplication.translate("DataList", "All files (*)")
    filters = f"{kind} ({' '.join(file_patterns())});;{all_files}"
    short = QFileDialog.Option.HideNameFilterDetails
    paths, _ = QFileDialog.getOpenFileNames(parent, title, folder, filters, options=short)
    return [str(Path(path)) for path in paths]


class SourceList(QListWidget):
    """A list that says, while it is empty, how to fill it. Drops are taken by the window, wherever they fall."""

    delete_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.hint = ""
        self.setObjectName("dataList")
        self.setSelectionMode(QListWidget.SelectionMode.ExtendedSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)

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
