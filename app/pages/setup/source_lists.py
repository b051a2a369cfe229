"""Lists of training and validation data, with buttons that add and remove files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QFileDialog, QListWidget, QListWidgetItem, QMenu, QToolButton

from app.core.sources import BUILTIN_PREFIX, summarize_sources
from app.pages.setup.form import VALIDATION, SetupForm
from app.pages.setup.path_monitor import PathMonitor
from app.pages.setup.texts import format_source_summary
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
from trainer_core.data.builtin import BUILTIN_DATASETS

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
            item = QListWidgetItem(formatting.format_data_source(path), self)
            item.setData(_PATH, path)
            item.setToolTip(plain_tooltip(item.text()))
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
    """List of the sources in a form, with a summary of their files.

    Training data also has a preview and a menu of built-in and recent data. Validation data is only a line of text
    while a fraction of the training data is held out instead.
    """

    def __init__(self, form: SetupForm, kind: Literal["training", "validation"]) -> None:
        super().__init__()
        self._form, self._kind, self._is_training = form, kind, kind == "training"
        self._add = form.add_data if self._is_training else form.add_validation_data
        self._set = form.set_data if self._is_training else form.set_validation_data
        self.recent: list[str] = []  # other paths of training data, newest first
        self.monitor = PathMonitor(
            self,
            form,
            "data" if self._is_training else VALIDATION,
            lambda: [path for path in self._paths if not path.startswith(BUILTIN_PREFIX)],
            summarize_sources,
            lambda summary: format_source_summary(summary, self._paths)[0],
        )
        self.list, self.summary = SourceList(), set_object_name(ElidedLabel(), "muted")
        self.add_file, self.add_folder = push_button("addFile"), push_button("addFolder")
        self._more, self._menu = IconButton("unfold", "moreData"), QMenu(self)
        self.preview_button, self.remove_button = push_button("link"), push_button("removeData")
        self._more.setMenu(self._menu)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
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
        if self._is_training:
            self._form.data_changed.connect(self._show_paths)
        else:
            self._form.knob_changed.connect(self._on_knob)
        self._form.changed.connect(self._show_summary)
        self.monitor.changed.connect(self._show_summary)
        self._menu.aboutToShow.connect(self._fill_menu)
        self.add_file.clicked.connect(self.ask_files)
        self.add_folder.clicked.connect(self.ask_folder)
        self.remove_button.clicked.connect(self._remove_selected)
        self.list.delete_pressed.connect(self._remove_selected)
        self.list.itemSelectionChanged.connect(lambda: self.remove_button.setEnabled(bool(self.list.selectedItems())))

    @property
    def _paths(self) -> list[str]:
        return self._form.data if self._is_training else self._form.validation_data

    def _on_knob(self, name: str) -> None:
        if name == VALIDATION:
            self._show_paths()

    def _show_paths(self) -> None:
        paths = self._paths
        self.list.set_paths(paths)
        self.remove_button.setEnabled(False)
        self.preview_button.setEnabled(bool(paths))
        self.preview_button.setToolTip(tr("setup.preview_hint" if paths else "setup.data_required"))
        for widget in (self.list, self.remove_button):
            widget.setVisible(self._is_training or bool(paths))
        self._show_summary()

    def _show_summary(self) -> None:
        text, is_warning = format_source_summary(self.monitor.result, self._paths)
        if not self._paths and not self._is_training and self._form.is_valid("validation_fraction"):
            fraction = self._form.value("validation_fraction")
            key = "setup.validation_share" if fraction else "setup.no_validation_data"
            text = tr(key, share=f"{100 * fraction:.3g} %")
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
            self._add([str(Path(path)) for path in paths])

    def ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, tr(_TEXTS[self._kind][2]), self._start_folder())
        if path:
            self._add([str(Path(path))])

    def _start_folder(self) -> str:
        paths = [*reversed(self._paths), *(self.recent if self._is_training else reversed(self._form.data))]
        own = (path for path in paths if not path.startswith(BUILTIN_PREFIX))
        return str(first_existing(Path(path).parent for path in own) or Path.home())

    def _remove_selected(self) -> None:
        if selected := self.list.selected_paths():
            is_last = len(selected) == len(self._paths)
            move_focus(self, self.add_file if is_last and not self._is_training else self.list)
            self._set([path for path in self._paths if path not in selected])

    def _fill_menu(self) -> None:
        self._menu.clear()
        for place, path in enumerate((*BUILTIN_DATASETS, *self.recent[:_MAX_RECENT])):
            if place == len(BUILTIN_DATASETS):
                self._menu.addSeparator()
            name = formatting.format_data_source(path)
            elided = self.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, _MAX_MENU_WIDTH)
            action = self._menu.addAction(elided.replace("&", "&&"))
            action.triggered.connect(lambda *_, path=path: self._add([path]))

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
        self.preview_button.setToolTip(tr("setup.preview_hint" if self._paths else "setup.data_required"))
        self._show_paths()
