"""Earlier runs from disk: a table, and what can be done with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import Retranslating, empty_note, named
from trainer_core.run_dir import RunSummary

_COLUMNS: Final = ("name", "state", "step", "loss", "speed", "preset", "data", "when")
_NUMBERS: Final = ("step", "loss", "speed")
_WIDTHS: Final = {
    "name": 210,
    "state": 84,
    "step": 108,
    "loss": 72,
    "speed": 76,
    "preset": 96,
    "data": 136,
    "when": 124,
}
_NEEDED: Final = {
    "data": 860,
    "preset": 740,
    "speed": 660,
    "when": 580,
}  # width of the page from which a column is shown
_Index = QModelIndex | QPersistentModelIndex


class RunsPage(Retranslating):
    """All runs. Double-click or Enter opens one; the buttons act on the selected one."""

    open_asked = Signal(Path)
    resume_asked = Signal(Path)
    folder_asked = Signal(Path)
    refresh_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._can_resume = True
        self.model = RunsModel()
        self.table = named(QTableView(), "runs")
        self.open, self.resume = named(QPushButton(), "openRun"), named(QPushButton(), "resumeRun")
        self.folder, self.refresh = named(QPushButton(), "runFolder"), named(QPushButton(), "refreshRuns")
        self.empty = empty_note(self.table)
        self._set_up_table()
        self._arrange()
        self.table.activated.connect(lambda index: self.open_asked.emit(self.model.runs[index.row()].path))
        self.open.clicked.connect(lambda: self._emit(self.open_asked))
        self.resume.clicked.connect(lambda: self._emit(self.resume_asked))
        self.folder.clicked.connect(lambda: self._emit(self.folder_asked))
        self.refresh.clicked.connect(self.refresh_asked)
        self.retranslate()
        self._enable()

    def _set_up_table(self) -> None:
        table = self.table
        table.setModel(self.model)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setShowGrid(False)
        table.setWordWrap(False)
        table.setTabKeyNavigation(False)
        table.setTextElideMode(Qt.TextElideMode.ElideRight)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(table.fontMetrics().lineSpacing() + SPACE + 2)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setMinimumSectionSize(56)
        for place, column in enumerate(_COLUMNS):
            table.setColumnWidth(place, _WIDTHS[column])
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        table.selectionModel().selectionChanged.connect(self._enable)

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setSpacing(SPACE)
        for button in (self.open, self.resume, self.folder):
            bar.addWidget(button)
        bar.addStretch(1)
        bar.addWidget(self.refresh)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addWidget(self.table, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        """A narrow page leaves out what the name tells too, instead of scrolling sideways."""
        super().resizeEvent(event)
        for column, needed in _NEEDED.items():
            self.table.setColumnHidden(_COLUMNS.index(column), event.size().width() < needed)

    def display(self, runs: list[RunSummary], *, can_resume: bool) -> None:
        """Show these runs; `can_resume`: whether none is being trained by this window."""
        self._can_resume = can_resume
        if runs != self.model.runs:
            chosen = self.selected()
            self.model.show(runs)
            self._select(chosen.path if chosen else None)
        self.empty.setVisible(not runs)
        self._enable()

    def selected(self) -> RunSummary | None:
        rows = self.table.selectionModel().selectedRows()
        return self.model.runs[rows[0].row()] if rows else None

    def _select(self, path: Path | None) -> None:
        for row, run in enumerate(self.model.runs):
            if run.path == path:
                self.table.selectRow(row)

    def _emit(self, signal: Any) -> None:
        run = self.selected()
        if run is not None:
            signal.emit(run.path)

    def _enable(self) -> None:
        run = self.selected()
        self.open.setEnabled(run is not None)
        self.folder.setEnabled(run is not None)
        self.resume.setEnabled(run is not None and run.resumable and self._can_resume)

    def retranslate(self) -> None:
        self.open.setText(self.tr("Open"))
        self.resume.setText(self.tr("Resume"))
        self.folder.setText(self.tr("Open folder"))
        self.refresh.setText(self.tr("Refresh"))
        self.table.setAccessibleName(self.tr("Runs"))
        self.empty.setText(self.tr("No runs yet. What you train appears here."))
        self.model.titles = [
            self.tr("Name"),
            self.tr("State"),
            self.tr("Step"),
            self.tr("Best loss"),
            self.tr("Tokens/s"),
            self.tr("Preset"),
            self.tr("Data"),
            self.tr("Started"),
        ]
        self.model.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(_COLUMNS) - 1)
        self.table.viewport().update()


class RunsModel(QAbstractTableModel):
    """Runs as a table; every text is made when it is painted, so thousands cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[RunSummary] = []
        self.titles: list[str] = []

    def show(self, runs: list[RunSummary]) -> None:
        self.beginResetModel()
        self.runs = list(runs)
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.runs)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(_COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self.titles[section] if section < len(self.titles) else None
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(_COLUMNS[section])
        return None

    def data(self, index: _Index, role: int = 0) -> Any:
        run, column = self.runs[index.row()], _COLUMNS[index.column()]
        if role == Qt.ItemDataRole.DisplayRole:
            return cell(run, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(run.path) if column == "name" else cell(run, column)
        return _alignment(column) if role == Qt.ItemDataRole.TextAlignmentRole else None


def _alignment(column: str) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in _NUMBERS else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def cell(run: RunSummary, column: str) -> str:
    """The text of one cell."""
    match column:
        case "name":
            return run.name
        case "state":
            return words.disk_state(run.state)
        case "step":
            return (
                f"{words.count(run.step)} / {words.count(run.total_steps)}"
                if run.total_steps
                else words.count(run.step)
            )
        case "loss":
            return words.loss(run.best_loss)
        case "speed":
            return words.rate(run.tokens_per_s)
        case "preset":
            return run.preset or "–"
        case "data":
            return words.data_names(run.data)
        case _:
            return words.when(run.started)
