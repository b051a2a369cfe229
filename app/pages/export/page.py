"""Export page: a checkpoint for other programs, its verification, and the programs that can use it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtGui import QShowEvent

from app.core.history.run_list import RunList
from app.core.installation import installation
from app.core.settings import Settings
from app.pages.export.model_programs import ModelPrograms
from app.pages.export.options_card import ExportOptionsCard
from app.pages.export.verification_view import VerificationView
from app.pages.page import Page
from app.services import desktop_shell
from app.services.export_job import ExportJob
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    card,
    horizontal_layout,
    vertical_layout,
)
from app.widgets.job_controls import JobControls

_PROGRESS_WIDTH: Final = 220  # pixels


class ExportPage(Page):
    """Exports one checkpoint at a time."""

    _history: RunList  # these are set by `connect_services`
    _settings: Settings

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.job = ExportJob(parent=self)
        self.options, self.verification = ExportOptionsCard(), VerificationView(palette)
        self.controls = JobControls("export", _PROGRESS_WIDTH, self)
        self.start, self.stop, self.status = self.controls.start, self.controls.stop, self.controls.status
        self.programs = ModelPrograms()
        self._arrange()
        self.options.changed.connect(self._refresh)
        self.options.folder_edited.connect(self._store_folder)
        self.start.clicked.connect(self._start)
        self.stop.clicked.connect(self.job.stop)
        self.job.changed.connect(self._refresh)
        installation.changed.connect(self._refresh)
        self.programs.message_ready.connect(self.controls.show_status)
        self.retranslate()

    def _arrange(self) -> None:
        form = vertical_layout()
        form.addWidget(self.options)
        row = horizontal_layout(self.start, self.stop, self.controls.progress, self.programs)
        row.insertStretch(3, 1)
        form.addLayout(row)
        form.addWidget(self.status)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addWidget(card(form))
        layout.addWidget(self.verification, 1)
        self.setLayout(layout)

    def connect_services(self, history: RunList, settings: Settings) -> None:
        self._history, self._settings = history, settings
        self.options.folder.setText(settings.export_folder or str(desktop_shell.documents_folder()))

    def shutdown(self) -> None:
        """End the processes."""
        self.job.shutdown()
        self.programs.shutdown()

    def refresh_checkpoints(self) -> None:
        """List the runs that have checkpoints. Called after each refresh of the run list."""
        if self.isVisible():
            self._list_runs()

    def _list_runs(self) -> None:
        self.options.choice.set_runs([run.path for run in self._history.runs if run.checkpoints])

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._list_runs()

    def select_checkpoint(self, checkpoint: Path) -> None:
        self._list_runs()
        self.options.choice.select(checkpoint.parent.parent, checkpoint)
        self.start.setFocus()

    # --- exporting --------------------------------------------------------------------------------------------

    def _store_folder(self, folder: str) -> None:
        self._settings.export_folder = folder

    def _start(self) -> None:
        checkpoint, target = self.options.choice.selected_checkpoint, self.options.target
        if checkpoint is not None and target is not None:
            self.job.start(checkpoint, target, self.options.options)
            self.stop.setFocus()

    def _refresh(self) -> None:
        job = self.job
        missing = installation.missing_reason("all")
        blocked = tr("disabled.exporting") if job.is_running else missing or self.options.blocked_reason
        self.options.setEnabled(not job.is_running)
        has_ended = self.controls.display(job.is_running, job.shown_phase, job.fraction, blocked)
        self.verification.display(job.result)
        self.programs.display(None if job.is_running else job.target)
        self.programs.setVisible(not job.is_running)  # the narrowest window has no room for it beside the progress
        if has_ended:
            self._show_end()

    def _show_end(self) -> None:
        """After an export."""
        if self.job.target is not None:
            self.controls.show_end(tr("export.done", folder=self.job.target))
        else:
            failure = self.job.failure
            self.controls.show_end(failure or tr("export.stopped"), "bad" if failure else "")
        self.options.retranslate()  # the next export gets another folder

    # --- theme and texts --------------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        self.verification.retheme(palette)

    def retranslate(self) -> None:
        self.start.setText(tr("export.start"))
        self.stop.setText(tr("export.stop"))
        self.controls.progress.setAccessibleName(tr("export.progress"))
        self.controls.show_status("")
        self._refresh()
