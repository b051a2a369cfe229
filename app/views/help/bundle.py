"""The bundle for a bug report: shown part by part, then saved where the person chooses. Nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QProgressBar,
    QVBoxLayout,
    QWidget,
)

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import button, label, named, resize_within_screen

_LIST_WIDTH = 230


class BundleView(QDialog):
    """Waits for its parts, shows them, and asks where they are to go."""

    save_asked = Signal(str)  # path
    folder_asked = Signal()
    left = Signal()

    def __init__(self, suggested: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("bundle")
        self._suggested = suggested
        self._texts: list[str] = []
        self.note = label(wrap=True)
        self.wait = QProgressBar(textVisible=False, maximum=0)
        self.list, self.text = named(QListWidget(), "bundleParts"), named(QPlainTextEdit(), "bundleText")
        self.save, self.folder, self.leave = button("bundleSave"), button("bundleFolder"), button("bundleClose")
        self._arrange()
        self._word()
        self.list.currentRowChanged.connect(self._show)
        self.save.clicked.connect(self._ask_where)
        self.folder.clicked.connect(self.folder_asked)
        self.leave.clicked.connect(self.close)
        resize_within_screen(self, QSize(820, 560))

    def _arrange(self) -> None:
        self.text.setReadOnly(True)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self.list.setFixedWidth(_LIST_WIDTH)
        self.save.setEnabled(False)
        self.save.setDefault(True)
        self.folder.hide()
        middle, bottom = QHBoxLayout(), QHBoxLayout()
        for row in (middle, bottom):
            row.setSpacing(SPACE)
        middle.addWidget(self.list)
        middle.addWidget(self.text, 1)
        bottom.addStretch(1)
        for made in (self.folder, self.save, self.leave):
            bottom.addWidget(made)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACE, 2 * SPACE, 2 * SPACE, 2 * SPACE)
        layout.setSpacing(SPACE)
        layout.addWidget(self.note)
        layout.addWidget(self.wait)
        layout.addLayout(middle, 1)
        layout.addLayout(bottom)

    def _word(self) -> None:
        self.setWindowTitle(self.tr("Bundle for a bug report"))
        self.note.setText(self.tr("Collecting what explains a failure: versions, settings, the last events and logs."))
        self.wait.setAccessibleName(self.tr("Collecting"))
        self.list.setAccessibleName(self.tr("What is in the bundle"))
        self.text.setAccessibleName(self.tr("Content"))
        self.save.setText(self.tr("Save as…"))
        self.folder.setText(self.tr("Open folder"))
        self.leave.setText(self.tr("Cancel"))

    def display(self, parts: Sequence[tuple[str, int, str]]) -> None:
        """(name, bytes, beginning of its text) of each part."""
        self._texts = [text for _, _, text in parts]
        for name, size, _ in parts:
            self.list.addItem(QListWidgetItem(f"{name}   {words.small_size(size)}"))
        self.list.setCurrentRow(0)
        self.wait.hide()
        self.note.setText(
            self.tr(
                "This is what the bundle holds. Your name, keys, prompts and samples were taken out; file names are "
                "still there. Look through it, then save it and attach it to your report. Nothing is sent by itself."
            )
        )
        self.save.setEnabled(True)
        self.save.setFocus()

    def fail(self, reason: str) -> None:
        """It could not be made, or not be saved."""
        self.wait.hide()
        said = self.tr("The bundle could not be made: {reason} Choose another place, or report without it.")
        self.note.setText(said.format(reason=reason))

    def saved(self, path: str) -> None:
        self.note.setText(self.tr("Saved as {path}").format(path=path))
        self.folder.show()
        self.leave.setText(self.tr("Close"))

    def _show(self, row: int) -> None:
        self.text.setPlainText(self._texts[row] if 0 <= row < len(self._texts) else "")

    def _ask_where(self) -> None:
        dialog = QFileDialog(self, self.tr("Save the bundle"), self._suggested, self.tr("Zip files (*.zip)"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("zip")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self.save_asked)
        dialog.open()

    def done(self, result: int) -> None:
        """However it is closed: by its button, Esc, or the frame of the window."""
        self.left.emit()
        super().done(result)
