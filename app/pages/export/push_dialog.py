"""Dialog that shows what an upload to the Hugging Face Hub sends, and to where, and starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QSize, Qt, QTimer, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QCheckBox, QDialog, QPlainTextEdit, QProgressBar, QWidget

from app.services.push_job import PushJob
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    announce,
    horizontal_layout,
    label,
    line_edit,
    push_button,
    resize_within_screen,
    restyle,
    set_object_name,
    show_fraction,
    vertical_layout,
)
from app.widgets.raw_text import set_raw_text_font
from trainer_core.console.events import format_upload

_SIZE: Final = QSize(640, 420)
_TYPING_MS: Final = 500  # after the last change of the name


class PushDialog(QDialog):
    """Lists with each change of the repository; Push uploads what is listed. It does not block."""

    def __init__(self, folder: Path, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle(tr("export.push_title"))
        self._folder, self._uploading = folder, False
        self._listed: tuple[str, bool] | None = None  # repository and visibility that the job has listed
        self.job = PushJob(parent=self)
        self.repository, self.private = line_edit("pushRepository"), set_object_name(QCheckBox(), "pushPrivate")
        self.private.setChecked(True)
        self.listing = set_object_name(QPlainTextEdit(readOnly=True), "pushListing")
        self.progress = set_object_name(QProgressBar(textVisible=False), "pushProgress")
        self.status = label("pushStatus", wrap=True)
        self.push, self.cancel, self.open_page = (
            push_button("primary"),
            push_button("pushCancel"),
            push_button("openHub"),
        )
        self._typing = QTimer(self, singleShot=True, interval=_TYPING_MS)
        self._arrange()
        self._typing.timeout.connect(self._list)
        self.repository.textEdited.connect(self._on_edited)
        self.private.toggled.connect(self._on_edited)
        self.push.clicked.connect(self._push)
        self.cancel.clicked.connect(self.reject)
        self.open_page.clicked.connect(self._open_page)
        self.job.changed.connect(self._refresh)
        self._list()

    def _arrange(self) -> None:
        name = label()
        name.setText(tr("export.push_repository"))
        name.setBuddy(self.repository)
        self.repository.setAccessibleName(name.text())
        self.private.setText(tr("export.push_private"))
        self.listing.setAccessibleName(tr("export.push_listing"))
        self.listing.setTabChangesFocus(True)
        set_raw_text_font(self.listing)
        self.progress.setAccessibleName(tr("export.push_progress"))
        self.push.setText(tr("export.push_start"))
        self.cancel.setText(tr("common.cancel"))
        self.open_page.setText(tr("export.push_open"))
        layout = vertical_layout(margin=2 * SPACING)
        layout.addLayout(horizontal_layout(name, (self.repository, 1), self.private))
        layout.addWidget(self.listing, 1)
        layout.addWidget(self.progress)
        layout.addWidget(self.status)
        for button in (self.cancel, self.open_page, self.push):
            button.setAutoDefault(False)  # Enter in the name must not upload
        buttons = horizontal_layout(self.cancel, self.open_page, self.push)
        buttons.insertStretch(0, 1)
        layout.addLayout(buttons)
        self.setLayout(layout)
        resize_within_screen(self, _SIZE)

    # --- listing and uploading --------------------------------------------------------------------------------

    @property
    def _wanted(self) -> tuple[str, bool]:
        return self.repository.text().strip(), self.private.isChecked()

    def _on_edited(self) -> None:
        self._listed, self._uploading = None, False
        self._typing.start()
        self._refresh()

    def _list(self) -> None:
        if not self.job.is_running:  # else at its end
            self._listed = self._wanted
            self._start(dry_run=True)

    def _push(self) -> None:
        self._uploading = True
        self._start(dry_run=False)
        self.cancel.setFocus()

    def _start(self, *, dry_run: bool) -> None:
        name, private = self._wanted
        self.job.start(self._folder, name, public=not private, dry_run=dry_run)

    def _refresh(self) -> None:
        running, result = self.job.is_running, self.job.result
        if self._listed is None:
            if not running and not self._typing.isActive():  # edited while the job was listing
                self._list()
                return
        elif result is not None and not self.repository.text():
            self.repository.setText(result.repository)
            self._listed = self._wanted
        if not self._uploading:
            is_current = self._listed is not None and result is not None
            self.listing.setPlainText(format_upload(result, current_language()) if is_current and result else "")
        is_done = self._uploading and self.job.is_complete
        is_listed = self._listed is not None and (self.job.is_complete or self._uploading)
        for editor in (self.repository, self.private):
            editor.setEnabled(not (running and self._uploading))
        self.push.setEnabled(is_listed and not running and not is_done)
        self.open_page.setVisible(is_done)
        self.cancel.setText(tr("common.close" if is_done else "common.cancel"))
        self.progress.setVisible(running)
        show_fraction(self.progress, self.job.fraction)
        self._show_status(is_done)

    def _show_status(self, is_done: bool) -> None:
        job, failure = self.job, self.job.failure
        if job.is_running:
            text = formatting.format_phase(job.shown_phase) if self._uploading else tr("export.push_checking")
        elif is_done and job.result is not None:
            text = format_upload(job.result, current_language())
        else:
            text = failure or (tr("export.push_stopped") if self._uploading else "")
        if text != self.status.text():
            self.status.setProperty("level", "bad" if failure and not job.is_running else "")
            restyle(self.status)
            self.status.setText(text)
            announce(self, text)

    def _open_page(self) -> None:
        if self.job.result is not None:
            QDesktopServices.openUrl(QUrl(self.job.result.url))

    def reject(self) -> None:
        """Close; during an upload, stop it instead."""
        if self.job.is_running and self._uploading:
            self.job.stop()
            return
        self.job.shutdown()
        super().reject()
