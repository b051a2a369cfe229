"""Checkpoints of a run, and what can be done with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHBoxLayout, QHeaderView, QTableView, QVBoxLayout, QWidget

from app.core.history.run_files import SavedCheckpoint
from app.core.history.run_rows import RunRow
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import TranslatableWidget, move_focus, placeholder_label, push_button, set_object_name
from app.widgets.table import Index, Role, TableModel, configure_table

_WIDTHS: Final = {"step": 74, "kind": 92, "loss": 72, "size": 78, "when": 120}
_MIN_TABLE_WIDTHS: Final = {"size": 330, "when": 450}  # below, the column is hidden
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
        self.table = set_object_name(QTableView(), "checkpoints")
        self.resume, self.generate = push_button("resumeFrom"), push_button("generateFrom")
        self.export = push_button("exportFrom")
        self.empty = placeholder_label(self.table)
        self._configure_table()
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACING)
        for button in (self.resume, self.generate, self.export):
            buttons.addWidget(button)
        buttons.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        layout.addWidget(self.table, 1)
        layout.addLayout(buttons)
        self.resume.clicked.connect(lambda: self._emit(self.resume_requested))
        self.generate.clicked.connect(lambda: self._emit(self.generate_requested))
        self.export.clicked.connect(lambda: self._emit(self.export_requested))
        self.table.activated.connect(lambda: self._emit(self.generate_requested))
        self.table.selectionModel().selectionChanged.connect(self._update_buttons)
        self.retranslate()

    def _configure_table(self) -> None:
        table = self.table
        table.setModel(self.model)
        configure_table(table, row_padding=SPACING // 2)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setMinimumHeight((_MIN_ROWS + 1) * (table.fontMetrics().lineSpacing() + SPACING))
        for section, width in enumerate(_WIDTHS.values()):
            table.setColumnWidth(section, width)
        kind = self.model.columns.index("kind")
        table.horizontalHeader().setSectionResizeMode(kind, QHeaderView.ResizeMode.Stretch)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        for column, min_width in _MIN_TABLE_WIDTHS.items():
            self.table.setColumnHidden(self.model.columns.index(column), event.size().width() < min_width)

    def display(self, row: RunRow | None) -> None:
        """Show a run, whose checkpoints follow in `set_checkpoints`."""
        if row is None or self._row is None or row.path != self._row.path:
            self.model.set_rows([])
            self.empty.hide()
        self._row = row
        self._update_buttons()

    def set_checkpoints(self, checkpoints: list[SavedCheckpoint]) -> None:
        """Show all checkpoints of the run, newest first."""
        if checkpoints != self.model.rows:
            selected = self.selected()
            self.model.set_rows(checkpoints)
            paths = [checkpoint.info.path for checkpoint in checkpoints]
            self.table.selectRow(paths.index(selected.info.path) if selected and selected.info.path in paths else 0)
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
        rows = self.table.selectionModel().selectedRows()
        return self.model.rows[rows[0].row()] if rows else None

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
        self.resume.setToolTip(tr("runs.goes_on_training_from_this"))
        self.generate.setToolTip(tr("runs.lets_model_this_step_write"))
        self.export.setToolTip(tr("runs.writes_this_model_into_folder"))
        self.empty.setText(tr("runs.no_checkpoints"))
        self.table.setAccessibleName(tr("runs.checkpoints"))
        self.model.retranslate()
        self.table.viewport().update()


class CheckpointModel(TableModel[SavedCheckpoint]):
    """Checkpoints of one run."""

    columns = tuple(_WIDTHS)
    numeric_columns = ("step", "loss", "size")

    def titles(self) -> dict[str, str]:
        return {
            "step": tr("runs.step"),
            "kind": tr("runs.kind"),
            "loss": tr("runs.eval_loss"),
            "size": tr("runs.size"),
            "when": tr("runs.saved"),
        }

    def data(self, index: Index, role: int = 0) -> Any:
        checkpoint, column = self.rows[index.row()], self.columns[index.column()]
        if role == Role.DisplayRole:
            return _format_cell(checkpoint, column)
        if role == Role.ToolTipRole:
            return str(checkpoint.info.path)
        return self.alignment(column) if role == Role.TextAlignmentRole else None


def _format_cell(checkpoint: SavedCheckpoint, column: str) -> str:
    match column:
        case "step":
            return formatting.format_count(checkpoint.info.step)
        case "kind":
            return format_checkpoint_kind(checkpoint.info.kind)
        case "loss":
            return formatting.format_loss(checkpoint.info.eval_loss)
        case "size":
            return formatting.format_file_size(checkpoint.info.bytes)
        case _:
            return formatting.format_timestamp(checkpoint.saved_at)


def format_checkpoint_kind(kind: str) -> str:
    """Translated `protocol.CheckpointKind`."""
    return {
        "regular": tr("runs.regular"),
        "best": tr("runs.best"),
        "final": tr("runs.final"),
        "emergency": tr("runs.emergency"),
    }.get(kind, kind)
