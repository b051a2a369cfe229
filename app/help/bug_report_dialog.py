"""Bug report dialog: displays the parts of a report, then saves it. Nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QDialog, QFileDialog, QListWidget, QPlainTextEdit, QProgressBar, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import horizontal_layout, label, push_button, resize_within_screen, set_object_name

_LIST_WIDTH = 230


class BugReportDialog(QDialog):
    """Waits for `display` or `fail`."""

    save_requested = Signal(str)  # path
    folder_requested = Signal()
    closed = Signal()

    def __init__(self, suggested_path: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("bundle")
        self.setWindowTitle(tr("help.bundle_for_bug_report"))
        self._suggested_path = suggested_path
        self._texts: list[str] = []
        self.note, self.wait = label(wrap=True), QProgressBar(textVisible=False, maximum=0)
        self.list = set_object_name(QListWidget(), "bundleParts")
        self.text = set_object_name(QPlainTextEdit(), "bundleText")
        self.save, self.folder = push_button("bundleSave"), push_button("bundleFolder")
        self.close_button = push_button("bundleClose")
        self._build_layout()
        self._set_texts()
        self.list.currentRowChanged.connect(lambda row: self.text.setPlainText(self._texts[row]))
        self.save.clicked.connect(self._ask_path)
        self.folder.clicked.connect(self.folder_requested)
        self.close_button.clicked.connect(self.close)
        resize_within_screen(self, QSize(820, 560))

    def _build_layout(self) -> None:
        self.text.setReadOnly(True)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self.list.setFixedWidth(_LIST_WIDTH)
        self.save.setEnabled(False)
        self.save.setDefault(True)
        self.folder.hide()
        buttons = horizontal_layout(self.folder, self.save, self.close_button)
        buttons.insertStretch(0, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACING, 2 * SPACING, 2 * SPACING, 2 * SPACING)
        layout.setSpacing(SPACING)
        layout.addWidget(self.note)
        layout.addWidget(self.wait)
        layout.addLayout(horizontal_layout(self.list, (self.text, 1)), 1)
        layout.addLayout(buttons)

    def _set_texts(self) -> None:
        self.note.setText(tr("help.collecting_what_explains_failure_versions"))
        self.wait.setAccessibleName(tr("help.collecting"))
        self.list.setAccessibleName(tr("help.what_in_bundle"))
        self.text.setAccessibleName(tr("help.content"))
        self.save.setText(tr("help.save_as"))
        self.folder.setText(tr("help.open_folder"))
        self.close_button.setText(tr("common.cancel"))

    def display(self, parts: Sequence[tuple[str, int, str]]) -> None:
        """Display the parts: (name, size in bytes, beginning of the text)."""
        self._texts = [text for _, _, text in parts]
        self.list.addItems([f"{name}   {formatting.format_file_size(size)}" for name, size, _ in parts])
        self.list.setCurrentRow(0)
        self.wait.hide()
        self.note.setText(tr("help.this_what_bundle_holds_your"))
        self.save.setEnabled(True)
        self.save.setFocus()

    def fail(self, reason: str) -> None:
        """Report that the bundle could not be created or saved."""
        self.wait.hide()
        self.note.setText(tr("help.bundle_could_not_be_made", reason=reason))

    def show_saved(self, path: str) -> None:
        self.note.setText(tr("help.saved_as_path", path=path))
        self.folder.show()
        self.close_button.setText(tr("common.close"))

    def _ask_path(self) -> None:
        dialog = QFileDialog(self, tr("help.save_the_bundle"), self._suggested_path, tr("help.zip_files_zip"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("zip")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self.save_requested)
        dialog.open()

    def done(self, result: int) -> None:
        super().done(result)
        self.closed.emit()
