"""The checkpoints of one run: a list, and what can be done from each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHBoxLayout, QHeaderView, QTableView, QVBoxLayout, QWidget

from app.state.runs.run_files import SavedCheckpoint
from app.state.runs.run_rows import Row
from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import Retranslating, button, empty_note, hand_over, named

_COLUMNS: Final = ("step", "kind", "loss", "size", "when")
_WIDTHS: Final = {"step": 74, "kind": 92, "loss": 72, "size": 78, "when": 120}
_NEEDED: Final = {"size": 330, "when": 450}  # width from which a column is shown
_NUMBERS: Final = ("step", "loss", "size")
_ROWS: Final = 4  # at least in sight
_Index = QModelIndex | QPersistentModelIndex
_Role = Qt.ItemDataRole


class Checkpoints(Retranslating):
    """The newest stands first and is chosen."""

    resume_asked = Signal(Path)  # of a checkpoint
    generate_asked = Signal(Path)
    export_asked = Signal(Path)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._row: Row | None = None
        self._can_resume, self._exporting = True, False
        self.model = _Model()
        self.table = named(QTableView(), "checkpoints")
        self.resume, self.generate, self.export = button("resumeFrom"), button("generateFrom"), button("exportFrom")
        self.empty = empty_note(self.table)
        self._set_up_table()
        self._arrange()
        self.resume.clicked.connect(lambda: self._emit(self.resume_asked))
        self.generate.clicked.connect(lambda: self._emit(self.generate_asked))
        self.export.clicked.connect(lambda: self._emit(self.export_asked))
        self.table.activated.connect(lambda: self._emit(self.generate_asked))
        self.table.selectionModel().selectionChanged.connect(self._enable)
        self.retranslate()

    def _set_up_table(self) -> None:
        table, header = self.table, self.table.horizontalHeader()
        table.setModel(self.model)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setShowGrid(False)
        table.setWordWrap(False)
        table.setTabKeyNavigation(False)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(table.fontMetrics().lineSpacing() + SPACE // 2)
        table.setMinimumHeight((_ROWS + 1) * (table.fontMetrics().lineSpacing() + SPACE))
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        for place, column in enumerate(_COLUMNS):
            table.setColumnWidth(place, _WIDTHS[column])
        header.setSectionResizeMode(_COLUMNS.index("kind"), QHeaderView.ResizeMode.Stretch)

    def _arrange(self) -> None:
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE)
        for pressed in (self.resume, self.generate, self.export):
            buttons.addWidget(pressed)
        buttons.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        layout.addWidget(self.table, 1)
        layout.addLayout(buttons)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        for column, needed in _NEEDED.items():
            self.table.setColumnHidden(_COLUMNS.index(column), event.size().width() < needed)

    def display(self, row: Row | None) -> None:
        """Of this run; its checkpoints follow in `show_found`."""
        if row is None or self._row is None or row.path != self._row.path:
            self.model.show([])
            self.empty.hide()
        self._row = row
        self._enable()

    def show_found(self, found: list[SavedCheckpoint]) -> None:
        """All of them, newest first."""
        if found != self.model.saved:
            chosen = self.selected()
            self.model.show(found)
            places = [place for place, saved in enumerate(found) if chosen and saved.info.path == chosen.info.path]
            if found:
                self.table.selectRow(places[0] if places else 0)
        self.empty.setVisible(not found)
        self._enable()

    def allow(self, *, can_resume: bool, exporting: bool) -> None:
        """Whether this window trains nothing just now, and whether a checkpoint is being exported."""
        self._can_resume, self._exporting = can_resume, exporting
        if exporting:
            hand_over(self.export, self.table)
        self._enable()

    def selected(self) -> SavedCheckpoint | None:
        rows = self.table.selectionModel().selectedRows()
        return self.model.saved[rows[0].row()] if rows else None

    def _emit(self, signal: Any) -> None:
        saved = self.selected()
        if saved is not None:
            signal.emit(saved.info.path)

    def _enable(self) -> None:
        saved, row = self.selected(), self._row
        self.generate.setEnabled(saved is not None)
        self.export.setEnabled(saved is not None and not self._exporting)
        # From its last step a finished run has nowhere to go on to.
        over = row is not None and saved is not None and row.run.state == "finished" and saved.info.step >= row.run.step
        running = row is not None and row.run.state == "running"
        self.resume.setEnabled(saved is not None and self._can_resume and not over and not running)

    def retranslate(self) -> None:
        self.resume.setText(self.tr("Resume from here"))
        self.generate.setText(self.tr("Generate from here"))
        self.export.setText(self.tr("Export…"))
        self.resume.setToolTip(
            self.tr("Goes on training from this step. From an older one in a new run, so that nothing is overwritten.")
        )
        self.generate.setToolTip(self.tr("Lets the model of this step write, on the page “Try it”."))
        self.export.setToolTip(self.tr("Writes this model into a folder that other programs load (Hugging Face)."))
        self.empty.setText(self.tr("No checkpoints"))
        self.table.setAccessibleName(self.tr("Checkpoints"))
        self.model.titles = [self.tr("Step"), self.tr("Kind"), self.tr("Eval loss"), self.tr("Size"), self.tr("Saved")]
        self.model.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(_COLUMNS) - 1)
        self.table.viewport().update()


class _Model(QAbstractTableModel):
    def __init__(self) -> None:
        super().__init__()
        self.saved: list[SavedCheckpoint] = []
        self.titles: list[str] = []

    def show(self, saved: list[SavedCheckpoint]) -> None:
        self.beginResetModel()
        self.saved = list(saved)
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.saved)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(_COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == _Role.DisplayRole:
            return self.titles[section] if section < len(self.titles) else None
        return _alignment(_COLUMNS[section]) if role == _Role.TextAlignmentRole else None

    def data(self, index: _Index, role: int = 0) -> Any:
        saved, column = self.saved[index.row()], _COLUMNS[index.column()]
        if role == _Role.DisplayRole:
            return _cell(saved, column)
        if role == _Role.ToolTipRole:
            return str(saved.info.path)
        return _alignment(column) if role == _Role.TextAlignmentRole else None


def _alignment(column: str) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in _NUMBERS else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def _cell(saved: SavedCheckpoint, column: str) -> str:
    match column:
        case "step":
            return words.count(saved.info.step)
        case "kind":
            return kind(saved.info.kind)
        case "loss":
            return words.loss(saved.info.eval_loss)
        case "size":
            return words.small_size(saved.info.bytes)
        case _:
            return words.when(saved.when)


def kind(name: str) -> str:
    """Why a checkpoint was saved (`protocol.CheckpointKind`), in a word."""
    return {
        "regular": QCoreApplication.translate("Checkpoint", "regular"),
        "best": QCoreApplication.translate("Checkpoint", "best"),
        "final": QCoreApplication.translate("Checkpoint", "final"),
        "emergency": QCoreApplication.translate("Checkpoint", "emergency"),
    }.get(name, name)
