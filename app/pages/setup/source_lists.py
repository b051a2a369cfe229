"""Lists of training and validation data, with buttons that add and remove files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QPainter, QPaintEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QListWidget, QListWidgetItem, QMenu, QToolButton, QWidget

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


class SourceList(QListWidget):
    """Files and folders; a hint while there are none. The main window handles drops (`app/window/drop_target.py`)."""

    delete_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.hint = ""
        self.setObjectName("dataList")
        self.setSelectionMode(QListWidget.SelectionMode.ExtendedSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)

    def set_paths(self, paths: Sequence[str]) -> None:
        self.clear()
        for path in paths:
            item = QListWidgetItem(formatting.format_data_source(path))
            item.setData(_PATH, path)
            item.setToolTip(plain_tooltip(item.text()))
            self.addItem(item)

    def selected_paths(self) -> list[str]:
        return [str(item.data(_PATH)) for item in self.selectedItems()]

    def select_paths(self, paths: Sequence[str]) -> None:
        """Select exactly these paths."""
        for row in range(self.count()):
            item = self.item(row)
            item.setSelected(item.data(_PATH) in paths)

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(200, self.fontMetrics().lineSpacing() * _VISIBLE_ROWS + 3 * SPACING)

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


class SourceEditor(TranslatableWidget):
    """List of sources with a summary. Emits the paths to add or remove; subclasses arrange the widgets."""

    added = Signal(list)
    removed = Signal(list)

    def __init__(self, remove_name: str) -> None:
        super().__init__()
        self._paths: list[str] = []
        self._summary: SourceSummary | None = None  # None: not known yet
        self.recent: list[str] = []  # other paths; the dialogs begin in the folder of the first that exists
        self._files_title = self._folder_title = self._kind = ""  # of the file dialogs
        self.list, self.summary = SourceList(), set_object_name(ElidedLabel(), "muted")
        self._next_focus: QWidget = self.list  # takes the focus of the remove button
        self.remove_button = push_button(remove_name)
        self.remove_button.setEnabled(False)
        self.remove_button.clicked.connect(self._remove_selected)
        self.list.delete_pressed.connect(self._remove_selected)
        self.list.itemSelectionChanged.connect(lambda: self.remove_button.setEnabled(bool(self.list.selectedItems())))

    def _arrange(self, *rows: QHBoxLayout) -> None:
        """Lay out the list and rows below it."""
        layout = vertical_layout(spacing=SPACING // 2)
        layout.addWidget(self.list)
        for row in rows:
            layout.addLayout(row)
        self.setLayout(layout)

    def set_summary(self, summary: SourceSummary | None) -> None:
        """Show what the sources contain; None: not known yet."""
        self._summary = summary
        text, is_warning = self._format_summary()
        self.summary.setText(text)
        name = "warnText" if is_warning else "muted"
        if self.summary.objectName() != name:
            restyle(set_object_name(self.summary, name))

    def _format_summary(self) -> tuple[str, bool]:
        """Text, and whether it is a warning."""
        return texts.format_source_summary(self._summary, self._paths)

    def ask_files(self) -> None:
        """Add files from a file dialog whose filter lists every supported format."""
        from trainer_core.data.formats import file_patterns  # takes 20 ms to import

        filters = f"{self._kind} ({' '.join(file_patterns())});;{tr('setup.all_files')}"
        option = QFileDialog.Option.HideNameFilterDetails
        paths, _ = QFileDialog.getOpenFileNames(self, self._files_title, self._start_folder(), filters, options=option)
        if paths:
            self.added.emit([str(Path(path)) for path in paths])

    def ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, self._folder_title, self._start_folder())
        if path:
            self.added.emit([str(Path(path))])

    def _start_folder(self) -> str:
        paths = [*reversed(self._paths), *self.recent]
        own = (path for path in paths if not path.startswith(BUILTIN_PREFIX))
        return str(first_existing(Path(path).parent for path in own) or Path.home())

    def _remove_selected(self) -> None:
        if selected := self.list.selected_paths():
            move_focus(self.remove_button, self._next_focus)
            self.removed.emit(selected)

    def _set_paths(self, paths: list[str]) -> None:
        self._paths = paths
        self.list.set_paths(paths)
        self.remove_button.setEnabled(False)

    def retranslate(self) -> None:
        self.remove_button.setText(tr("setup.remove"))
        self.list.set_paths(self._paths)
        self.set_summary(self._summary)


class TrainingDataEditor(SourceEditor):
    """Training data; built-in and recent data are in a menu."""

    preview_requested = Signal()

    def __init__(self) -> None:
        super().__init__("removeData")
        self._add_file, self._add_folder = push_button("addFile"), push_button("addFolder")
        self._more, self._menu = IconButton("unfold", "moreData"), QMenu(self)
        self.preview_button = push_button("link")
        self._menu.aboutToShow.connect(self._fill_menu)
        self._more.setMenu(self._menu)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.preview_button.clicked.connect(self.preview_requested)
        self._add_file.clicked.connect(self.ask_files)
        self._add_folder.clicked.connect(self.ask_folder)
        buttons = horizontal_layout(self._add_file, self._add_folder, self._more, spacing=SPACING // 2)
        buttons.addStretch(1)
        buttons.addWidget(self.remove_button)
        self._arrange(horizontal_layout((self.summary, 1), self.preview_button), buttons)
        self.retranslate()

    def display(self, paths: list[str]) -> None:
        self._set_paths(paths)
        self.preview_button.setEnabled(bool(paths))
        self.set_summary(None)

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
        self._files_title, self._folder_title = tr("setup.add_files_train_on"), tr("setup.add_folder_train_on")
        self._kind = tr("setup.training_data")
        self.list.hint = tr("setup.drop_files_or_folders_here")
        self.list.setAccessibleName(tr("setup.data_to_train_on"))
        self._add_file.setText(tr("setup.add_file"))
        self._add_folder.setText(tr("setup.add_folder"))
        self._more.setToolTip(tr("setup.built_in_recent_data"))
        self._more.setAccessibleName(tr("setup.built_in_recent_data"))
        delete_key = QKeySequence(QKeySequence.StandardKey.Delete)
        self.remove_button.setToolTip(delete_key.toString(QKeySequence.SequenceFormat.NativeText))
        self.preview_button.setText(tr("setup.look_at_it"))
        self.preview_button.setToolTip(tr("setup.read_some_data_show_what"))
        super().retranslate()


class ValidationDataEditor(SourceEditor):
    """Validation data; only a line of text while a fraction of the training data is held out instead."""

    def __init__(self) -> None:
        super().__init__("removeValidation")
        self._fraction = 0.0
        self._add, menu = push_button("link"), QMenu(self)
        self._next_focus = self._add
        self.add_file, self.add_folder = menu.addAction(""), menu.addAction("")
        self._add.setMenu(menu)
        self.add_file.triggered.connect(self.ask_files)
        self.add_folder.triggered.connect(self.ask_folder)
        self._arrange(horizontal_layout((self.summary, 1), self._add, self.remove_button))
        self.retranslate()

    def display(self, paths: list[str], training_paths: list[str], fraction: float) -> None:
        """Show `paths`; if there are none, `fraction` of the training data is held out."""
        if paths != self._paths:
            self._summary = None
        self.recent, self._fraction = training_paths[::-1], fraction
        self._set_paths(paths)
        self.list.setVisible(bool(paths))
        self.remove_button.setVisible(bool(paths))
        self.set_summary(self._summary)

    def _format_summary(self) -> tuple[str, bool]:
        if self._paths:
            return super()._format_summary()
        if not self._fraction:
            return tr("setup.none_or_datas_validation_split"), False
        return tr("setup.share_data_or_validation_split", share=f"{100 * self._fraction:.3g} %"), False

    def retranslate(self) -> None:
        self._files_title, self._folder_title = tr("setup.add_files_to_evaluate"), tr("setup.add_folder_evaluate")
        self._kind = tr("setup.validation_data")
        self.list.setAccessibleName(tr("setup.validation_data"))
        self.add_file.setText(tr("setup.add_file"))
        self.add_folder.setText(tr("setup.add_folder"))
        self._add.setToolTip(tr("setup.measure_eval_loss_on_files"))
        self._add.setAccessibleName(tr("setup.add_validation_data"))
        self._add.setText(tr("setup.add"))
        super().retranslate()
