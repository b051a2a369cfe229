"""Checkpoints of a run, and what can be done with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    TranslatableWidget,
    horizontal_layout,
    placeholder_label,
    push_button,
    vertical_layout,
)
from app.widgets.table import Column, RowTable, TableModel, number_column
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir, RunSummary

_MIN_ROWS: Final = 4  # visible
_COLUMNS: Final[dict[str, Column[CheckpointInfo]]] = {
    "step": number_column("runs.step", lambda info: formatting.format_count(info.step), 74),
    "kind": Column("runs.kind", lambda info: formatting.format_checkpoint_kind(info.kind)),
    "loss": number_column("runs.eval_loss", lambda info: formatting.format_loss(info.eval_loss), 72),
    "size": number_column("runs.size", lambda info: formatting.format_file_size(info.bytes), 78, 330),
    "when": Column("runs.saved", lambda info: formatting.format_timestamp(info.saved), 120, 450),
}


class CheckpointList(TranslatableWidget):
    """Newest checkpoint first, selected initially."""

    resume_requested = Signal(Path)  # a checkpoint, like the two below
    generate_requested = Signal(Path)
    export_requested = Signal(Path)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._run: RunSummary | None = None
        self._can_resume = True
        self.model: TableModel[CheckpointInfo] = TableModel(_COLUMNS, lambda info: info.path)
        self.table = RowTable(self.model, "checkpoints", row_padding=SPACING // 2)
        self.table.setSelectionMode(RowTable.SelectionMode.SingleSelection)
        self.table.setMinimumHeight((_MIN_ROWS + 1) * (self.table.fontMetrics().lineSpacing() + SPACING))
        self.resume, self.generate = push_button("resumeFrom"), push_button("generateFrom")
        self.export = push_button("exportFrom")
        self.empty = placeholder_label(self.table)
        buttons = horizontal_layout(self.resume, self.generate, self.export)
        buttons.addStretch(1)
        layout = vertical_layout()
        layout.addWidget(self.table, 1)
        layout.addLayout(buttons)
        self.setLayout(layout)
        self.resume.clicked.connect(lambda: self._emit(self.resume_requested))
        self.generate.clicked.connect(lambda: self._emit(self.generate_requested))
        self.export.clicked.connect(lambda: self._emit(self.export_requested))
        self.table.activated.connect(lambda: self._emit(self.generate_requested))
        self.table.selection_changed.connect(self._update_buttons)
        self.retranslate()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.hide_columns(event.size().width())

    def display(self, run: RunSummary | None, *, can_resume: bool) -> None:
        """Show the checkpoints of a run. They are read again if the run has changed."""
        self._can_resume = can_resume
        if run is not self._run:
            self._run = run
            infos = checkpoint_dir.list_infos(RunDir(run.path).checkpoints) if run is not None else []
            self.model.set_rows(infos[::-1])
            if infos and self.selected() is None:
                self.table.selectRow(0)
            self.empty.setVisible(not infos)
        self._update_buttons()

    def selected(self) -> CheckpointInfo | None:
        return next(iter(self.table.selected_rows()), None)

    def _emit(self, signal: Any) -> None:
        if (checkpoint := self.selected()) is not None:
            signal.emit(checkpoint.path)

    def _update_buttons(self) -> None:
        checkpoint, run = self.selected(), self._run
        self.generate.setEnabled(checkpoint is not None)
        self.export.setEnabled(checkpoint is not None)
        can_resume = checkpoint is not None and run is not None and run.state != "running" and self._can_resume
        if can_resume and checkpoint is not None and run is not None and run.state == "finished":
            can_resume = checkpoint.step < run.step
        self.resume.setEnabled(can_resume)

    def retranslate(self) -> None:
        self.resume.setText(tr("runs.resume_from_here"))
        self.generate.setText(tr("runs.generate_from_here"))
        self.export.setText(tr("runs.export"))
        self.resume.setToolTip(tr("runs.resume_hint"))
        self.generate.setToolTip(tr("runs.generate_hint"))
        self.export.setToolTip(tr("runs.export_hint"))
        self.empty.setText(tr("runs.no_checkpoints"))
        self.table.setAccessibleName(tr("runs.checkpoints"))
        self.table.retranslate()
