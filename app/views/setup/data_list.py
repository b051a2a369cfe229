"""The list of files and folders to train on, with choosers, and what they seem to be."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.state.data_glance import Glance
from app.theme.tokens import SPACE
from app.views import data_words, words
from app.views.setup import source_list
from app.views.setup.source_list import SourceList
from app.views.widgets import ElidedLabel, Retranslating, SignButton, button, hand_over, named, restyle

_AS_WRITTEN = QKeySequence.SequenceFormat.NativeText


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
        self.list.show_paths(paths)
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
        self.list.select_paths(paths)

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
        title, kind = self.tr("Add files to train on"), self.tr("Training data")
        self._emit_added(source_list.ask_files(self, title, kind, self._beside()))

    def ask_folder(self) -> None:
        self._emit_added(source_list.ask_folder(self, self.tr("Add a folder to train on"), self._beside()))

    def _emit_added(self, paths: list[str]) -> None:
        if paths:
            self.added.emit(paths)

    def _beside(self) -> list[str]:
        """Paths beside which a dialog opens: those added or trained on last."""
        return [*reversed(self._paths), *self.recent]

    def _remove_selected(self) -> None:
        if chosen := self.list.selected_paths():
            hand_over(self._remove, self.list)
            self.removed.emit(chosen)

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
