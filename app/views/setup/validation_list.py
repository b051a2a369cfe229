"""Files and folders to evaluate: one line while a part of the data is held back, a list where there are own ones."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QVBoxLayout, QWidget

from app.state.data_glance import Glance
from app.theme.tokens import SPACE
from app.views import data_words
from app.views.setup import source_list
from app.views.setup.source_list import SourceList
from app.views.widgets import ElidedLabel, Retranslating, button, hand_over, named, restyle


class ValidationList(Retranslating):
    """What to evaluate. Emits whole lists of paths to add or remove; shows what `display` is given."""

    added = Signal(list)
    removed = Signal(list)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._paths: list[str] = []
        self._near: list[str] = []  # the training data: a file dialog opens beside it
        self._fraction = 0.0
        self._glance: Glance | None = None  # None: not known yet
        self.list = SourceList()
        self.note = named(ElidedLabel(), "muted")
        self._add, self._remove = button("link"), named(QPushButton(), "removeValidation")
        self._menu = QMenu(self)
        self.add_file, self.add_folder = self._menu.addAction(""), self._menu.addAction("")
        self._add.setMenu(self._menu)
        self.add_file.triggered.connect(self._ask_files)
        self.add_folder.triggered.connect(self._ask_folder)
        self._remove.clicked.connect(self._remove_selected)
        self.list.delete_pressed.connect(self._remove_selected)
        self.list.itemSelectionChanged.connect(self._enable)
        self._arrange()
        self.retranslate()

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        row.addWidget(self.note, 1)
        row.addWidget(self._add)
        row.addWidget(self._remove)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE // 2)
        layout.addWidget(self.list)
        layout.addLayout(row)

    def display(self, paths: list[str], near: list[str], fraction: float) -> None:
        """Show these sources; `fraction` of the data is held back where there are none."""
        if paths != self._paths:
            self._glance = None
        self._paths, self._near, self._fraction = paths, near, fraction
        self.list.show_paths(paths)
        self.list.setVisible(bool(paths))
        self._remove.setVisible(bool(paths))
        self._enable()
        self.show_glance(self._glance)

    def show_glance(self, glance: Glance | None) -> None:
        """Say what the sources seem to be; None: that is not known yet."""
        self._glance = glance
        text, missing = data_words.seen(glance, self._paths, self._paths) if self._paths else (self._held_back(), False)
        self.note.setText(text)
        name = "warnText" if missing else "muted"
        if self.note.objectName() != name:
            restyle(named(self.note, name))

    def _held_back(self) -> str:
        if not self._fraction:
            return self.tr("None, or the data's validation split")
        text = self.tr("{share} of the data, or its validation split")
        return text.format(share=f"{100 * self._fraction:.3g} %")

    def retranslate(self) -> None:
        self.list.setAccessibleName(self.tr("Validation data"))
        self.add_file.setText(self.tr("Add file…"))
        self.add_folder.setText(self.tr("Add folder…"))
        self._add.setToolTip(self.tr("Measure eval loss on files of your own"))
        self._add.setAccessibleName(self.tr("Add validation data"))
        self._add.setText(self.tr("Add…"))
        self._remove.setText(self.tr("Remove"))
        self.display(self._paths, self._near, self._fraction)

    def _enable(self) -> None:
        self._remove.setEnabled(bool(self.list.selectedItems()))

    def _ask_files(self) -> None:
        title, kind = self.tr("Add files to evaluate"), self.tr("Validation data")
        self._emit_added(source_list.ask_files(self, title, kind, self._beside()))

    def _ask_folder(self) -> None:
        self._emit_added(source_list.ask_folder(self, self.tr("Add a folder to evaluate"), self._beside()))

    def _emit_added(self, paths: list[str]) -> None:
        if paths:
            self.added.emit(paths)

    def _beside(self) -> list[str]:
        return [*reversed(self._paths), *reversed(self._near)]

    def _remove_selected(self) -> None:
        if chosen := self.list.selected_paths():
            hand_over(self._remove, self._add)
            self.removed.emit(chosen)
