"""Lists of training and validation data, with buttons that add and remove files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QFileDialog, QListWidget, QListWidgetItem, QMenu, QToolButton

from app.core.sources import BUILTIN_PREFIX, SourceSummary
from app.pages.setup import texts
from app.services.desktop_shell import first_existing
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    TranslatableWidget,
    horizontal_layout,
    move_focus,
    placeholder_label,
    plain_tooltip,
    push_button,
    restyle,
    set_object_name,
    vertical_layout,
)

_VISIBLE_ROWS: Final = 2
_MAX_RECENT: Final = 8
_MAX_MENU_WIDTH: Final = 420  # pixels
_PATH: Final = Qt.ItemDataRole.UserRole
_TEXTS: Final = {  # name of the list, titles of the dialogs, kind of files
    "training": (
        "setup.data_list", "setup.add_training_files", "setup.add_training_folder", "setup.training_data",
    ),
    "validation": (
        "setup.validation_data", "setup.add_validation_files", "setup.add_validation_folder", "setup.validation_data",
    ),
}  # fmt: skip


class SourceList(QListWidget):
    """Files and folders; a hint while there are none. The main window handles drops (`app/window/drop_target.py`)."""

    delete_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("dataList")
        self.setSelectionMode(QListWidget.SelectionMode.ExtendedSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)
        self.setFixedHeight(self.fontMetrics().lineSpacing() * _VISIBLE_ROWS + 3 * SPACING)
        self.hint = placeholder_label(self)

    def set_paths(self, paths: Sequence[str]) -> None:
        self.clear()
        for path in paths:
            item = QListWidgetItem(formatting.format_data_source(path))
            item.setData(_PATH, path)
            item.setToolTip(plain_tooltip(item.text()))
            self.addItem(item)
        self.hint.setVisible(not paths)

    def selected_paths(self) -> list[str]:
        return [str(item.data(_PATH)) for item in self.selectedItems()]

    def select_paths(self, paths: Sequence[str]) -> None:
        """Select exactly these paths."""
        for row in range(self.count()):
            item = self.item(row)
            item.setSelected(item.data(_PATH) in paths)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        if event.matches(QKeySequence.StandardKey.Delete):
            self.delete_pressed.emit()
        else:
            super().keyPressEvent(event)


class SourceEditor(TranslatableWidget):
    """List of sources with a summary. Emits the paths to add, or those that remain.

    Training data also has a preview and a menu of built-in and recent data. Validation data is only a line of text
    while a fraction of the training data is held out instead.
    """

    added = Signal(list)
    changed = Signal(list)  # the remaining paths
    preview_requested = Signal()

    def __init__(self, kind: Literal["training", "validation"]) -> None:
        super().__init__()
        self._kind, self._is_training = kind, kind == "training"
        self._paths: list[str] = []
        self._summary: SourceSummary | None = None  # None: not known yet
        self._fraction = 0.0  # held out if there is no validation data
        self.recent: list[str] = []  # other paths; the dialogs begin in the folder of the first that exists
        self.list, self.summary = SourceList(), set_object_name(ElidedLabel(), "muted")
        self.add_file, self.add_folder = push_button("addFile"), push_button("addFolder")
        self._more, self._menu = IconButton("unfold", "moreData"), QMenu(self)
        self.preview_button, self.remove_button = push_button("link"), push_button("removeData")
        self._more.setMenu(self._menu)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.remove_button.setEnabled(False)
        buttons = horizontal_layout(self.add_file, self.add_folder, self._more, spacing=SPACING // 2)
        buttons.addStretch(1)
        buttons.addWidget(self.remove_button)
        layout = vertical_layout(spacing=SPACING // 2)
        layout.addWidget(self.list)
        layout.addLayout(horizontal_layout((self.summary, 1), self.preview_button))
        layout.addLayout(buttons)
        self.setLayout(layout)
        self._more.setVisible(self._is_training)
        self.preview_button.setVisible(self._is_training)
        self._connect()
        self.retranslate()

    def _connect(self) -> None:
        self._menu.aboutToShow.connect(self._fill_menu)
        self.preview_button.clicked.connect(self.preview_requested)
        self.add_file.clicked.connect(self.ask_files)
        self.add_folder.clicked.connect(self.ask_folder)
        self.remove_button.clicked.connect(self._remove_selected)
        self.list.delete_pressed.connect(self._remove_selected)
        self.list.itemSelectionChanged.connect(lambda: self.remove_button.setEnabled(bool(self.list.selectedItems())))

    def display(self, paths: list[str], fraction: float = 0.0) -> None:
        """Show `paths`. If there is no validation data, `fraction` of the training data is held out."""
        if paths != self._paths:
            self._summary = None
        self._paths, self._fraction = paths, fraction
        self.list.set_paths(paths)
        self.remove_button.setEnabled(False)
        self.preview_button.setEnabled(bool(paths))
        for widget in (self.list, self.remove_button):
            widget.setVisible(self._is_training or bool(paths))
        self.set_summary(self._summary)

    def set_summary(self, summary: SourceSummary | None) -> None:
        """Show what the sources contain; None: not known yet."""
        self._summary = summary
        text, is_warning = texts.format_source_summary(summary, self._paths)
        if not self._paths and not self._is_training:
            share = f"{100 * self._fraction:.3g} %"
            key = "setup.validation_share" if self._fraction else "setup.no_validation_data"
            text = tr(key, share=share)
        self.summary.setText(text)
        name = "warnText" if is_warning else "muted"
        if self.summary.objectName() != name:
            restyle(set_object_name(self.summary, name))

    def ask_files(self) -> None:
        """Add files from a file dialog whose filter lists every supported format."""
        from trainer_core.data.formats import file_patterns  # takes 20 ms to import

        _, title, _, kind = map(tr, _TEXTS[self._kind])
        filters = f"{kind} ({' '.join(file_patterns())});;{tr('setup.all_files')}"
        option = QFileDialog.Option.HideNameFilterDetails
        paths, _ = QFileDialog.getOpenFileNames(self, title, self._start_folder(), filters, options=option)
        if paths:
            self.added.emit([str(Path(path)) for path in paths])

    def ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, tr(_TEXTS[self._kind][2]), self._start_folder())
        if path:
            self.added.emit([str(Path(path))])

    def _start_folder(self) -> str:
        paths = [*reversed(self._paths), *self.recent]
        own = (path for path in paths if not path.startswith(BUILTIN_PREFIX))
        return str(first_existing(Path(path).parent for path in own) or Path.home())

    def _remove_selected(self) -> None:
        if selected := self.list.selected_paths():
            is_last = len(selected) == len(self._paths)
            move_focus(self, self.add_file if is_last and not self._is_training else self.list)
            self.changed.emit([path for path in self._paths if path not in selected])

    def _fill_menu(self) -> None:
        self._menu.clear()
        for path in ("builtin:python", "builtin:tasks"):
            self._add_menu_entry(path)
        if self.recent:
            self._menu.addSeparator()
        for path in self.recent[:_MAX_RECENT]:
            self._add_menu_entry(path)

    def _add_menu_entry(self, path: str) -> None:
        name, mode = formatting.format_data_source(path), Qt.TextElideMode.ElideMiddle
        action = self._menu.addAction(self.fontMetrics().elidedText(name, mode, _MAX_MENU_WIDTH).replace("&", "&&"))
        action.triggered.connect(lambda: self.added.emit([path]))

    def retranslate(self) -> None:
        name, files_title, folder_title, _ = map(tr, _TEXTS[self._kind])
        self.list.setAccessibleName(name)
        self.list.hint.setText(tr("setup.drop_hint"))
        for button, text, title in (
            (self.add_file, tr("setup.add_file"), files_title),
            (self.add_folder, tr("setup.add_folder"), folder_title),
        ):
            button.setText(text)
            button.setAccessibleName(title)
            button.setToolTip("" if self._is_training else tr("setup.validation_hint"))
        self._more.setToolTip(tr("setup.recent_data"))
        self._more.setAccessibleName(tr("setup.recent_data"))
        self.remove_button.setText(tr("setup.remove"))
        delete_key = QKeySequence(QKeySequence.StandardKey.Delete)
        self.remove_button.setToolTip(delete_key.toString(QKeySequence.SequenceFormat.NativeText))
        self.preview_button.setText(tr("setup.preview"))
        self.preview_button.setToolTip(tr("setup.preview_hint"))
        self.list.set_paths(self._paths)
        self.set_summary(self._summary)
