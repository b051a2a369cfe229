"""Checkpoints of a run, and what can be done with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from app.core.history.run_files import SavedCheckpoint
from app.core.history.run_list import RunRow
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    TranslatableWidget,
    horizontal_layout,
    move_focus,
    placeholder_label,
    push_button,
    vertical_layout,
)
from app.widgets.table import Column, Index, Role, RowTable, TableModel, number_column

_MIN_ROWS: Final = 4  # visible


class CheckpointList(TranslatableWidget):
    """Newest checkpoint first, selected initially."""

    resume_requested = Signal(Path)  # a checkpoint, like the two below
    generate_requested = Signal(Path)
    export_requested = Signal(Path)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._row: RunRow | None = None
        self._can_resume, self._exporting = True, False
        self.model = CheckpointModel()
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

    def display(self, row: RunRow | None) -> None:
        """Show a run, whose checkpoints follow in `set_checkpoints`."""
        if row is None or self._row is None or row.path != self._row.path:
            self.table.set_rows([])
            self.empty.hide()
        self._row = row
        self._update_buttons()

    def set_checkpoints(self, checkpoints: list[SavedCheckpoint]) -> None:
        """Show all checkpoints of the run, newest first."""
        self.table.set_rows(checkpoints)
        if self.selected() is None:
            self.table.selectRow(0)
        self.empty.setVisible(not checkpoints)
        self._update_buttons()

    def set_can_resume(self, can_resume: bool) -> None:
        """`can_resume`: this window trains no run."""
        self._can_resume = can_resume
        self._update_buttons()

    def set_exporting(self, exporting: bool) -> None:
        """`exporting`: an export is in progress."""
        self._exporting = exporting
        if exporting:
            move_focus(self.export, self.table)
        self._update_buttons()

    def selected(self) -> SavedCheckpoint | None:
        return next(iter(self.table.selected_rows()), None)

    def _emit(self, signal: Any) -> None:
        checkpoint = self.selected()
        if checkpoint is not None:
            signal.emit(checkpoint.info.path)

    def _update_buttons(self) -> None:
        checkpoint, run = self.selected(), self._row.run if self._row else None
        self.generate.setEnabled(checkpoint is not None)
        self.export.setEnabled(checkpoint is not None and not self._exporting)
        resumable = checkpoint is not None and run is not None and run.state != "running" and self._can_resume
        if resumable and checkpoint is not None and run is not None and run.state == "finished":
            resumable = checkpoint.info.step < run.step
        self.resume.setEnabled(resumable)

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


def _format_kind(kind: str) -> str:
    """Translated `protocol.CheckpointKind`."""
    return {
        "regular": tr("runs.regular"),
        "best": tr("runs.best"),
        "final": tr("runs.final"),
        "emergency": tr("runs.emergency"),
    }.get(kind, kind)


_COLUMNS: Final[dict[str, Column[SavedCheckpoint]]] = {
    "step": number_column("runs.step", lambda checkpoint: formatting.format_count(checkpoint.info.step), 74),
    "kind": Column("runs.kind", lambda checkpoint: _format_kind(checkpoint.info.kind)),
    "loss": number_column("runs.eval_loss", lambda checkpoint: formatting.format_loss(checkpoint.info.eval_loss), 72),
    "size": number_column("runs.size", lambda checkpoint: formatting.format_file_size(checkpoint.info.bytes), 78, 330),
    "when": Column("runs.saved", lambda checkpoint: formatting.format_timestamp(checkpoint.saved_at), 120, 450),
}


class CheckpointModel(TableModel[SavedCheckpoint]):
    """Checkpoints of one run."""

    def __init__(self) -> None:
        super().__init__(_COLUMNS, lambda checkpoint: checkpoint.info.path)

    def data(self, index: Index, role: int = 0) -> Any:
        if role == Role.ToolTipRole:
            return str(self.rows[index.row()].info.path)
        return super().data(index, role)
