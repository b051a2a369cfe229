"""Runs as a table for Qt. Every text is made when it is painted, so thousands cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap

from app.state.runs import run_rows
from app.state.runs.run_notes import RunNotes
from app.state.runs.run_rows import COLUMNS, Column, Row, Shelf
from app.theme.icons import pixmap
from app.theme.tokens import Tokens
from app.views import words
from app.views.widgets import plain_tip
from trainer_core.runs.run_dir import RunSummary

NAME: Final = COLUMNS.index("name")
SHOWN: Final = COLUMNS.index("shown")
_NUMBERS: Final = ("step", "loss", "speed", "time")
_EYE: Final = QSize(20, 16)
_Index = QModelIndex | QPersistentModelIndex
_Role = Qt.ItemDataRole


class RunsModel(QAbstractTableModel):
    """`rows`: what the search and the shelf leave, in the chosen order; `all_rows`: all runs."""

    renamed = Signal(Path, str)  # a name was typed

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.all_rows: list[Row] = []
        self.rows: list[Row] = []
        self.titles: dict[Column, str] = {}
        self.column: Column = "started"
        self.descending = True
        self.search = ""
        self.shelf: Shelf = "current"
        self.shown: dict[Path, str] = {}  # runs laid over the plots, and their colour tokens
        self._states: dict[str, str] = {}
        self.retheme(tokens)

    @property
    def runs(self) -> list[RunSummary]:
        return [row.run for row in self.rows]

    # --- what is shown ------------------------------------------------------------------------------------

    def take(self, runs: list[tuple[RunSummary, RunNotes]]) -> bool:
        """These are all runs now. False: nothing has changed."""
        known = {row.path: row for row in self.all_rows}
        fresh = [self._row(run, notes, known.get(run.path)) for run, notes in runs]
        if fresh == self.all_rows:
            return False
        self.all_rows = fresh
        self.arrange()
        return True

    def _row(self, run: RunSummary, notes: RunNotes, known: Row | None) -> Row:
        if known is not None and known.run == run and known.notes == notes:
            return known
        if run.state not in self._states:
            self._states[run.state] = words.disk_state(run.state)
        return run_rows.make_row(run, notes, self._states[run.state])

    def arrange(self) -> None:
        """Find and order anew. Rows that stay where they are are painted again, and nothing else happens."""
        shelf = (row for row in self.all_rows if run_rows.on_shelf(row, self.shelf))
        found = run_rows.find(shelf, self.search)
        rows = run_rows.arrange(found, self.column, descending=self.descending, shown=self.shown)
        if [row.path for row in rows] == [row.path for row in self.rows]:
            self.rows = rows
            if rows:
                self.dataChanged.emit(self.index(0, 0), self.index(len(rows) - 1, len(COLUMNS) - 1))
            return
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """By a click on a header."""
        if 0 <= column < len(COLUMNS):
            self.column, self.descending = COLUMNS[column], order is Qt.SortOrder.DescendingOrder
            self.arrange()

    def place(self, path: Path) -> int | None:
        """The row of a run; None where it is not among those that are shown."""
        return next((place for place, row in enumerate(self.rows) if row.path == path), None)

    def show_in_plots(self, shown: dict[Path, str]) -> None:
        """Which runs are laid over the plots, with their colours."""
        if shown != self.shown:
            self.shown = dict(shown)
            if self.rows:
                self.dataChanged.emit(self.index(0, SHOWN), self.index(len(self.rows) - 1, SHOWN))

    def retheme(self, tokens: Tokens) -> None:
        self._tokens, self._icons = tokens, dict[str, QIcon]()
        self._muted = QColor(tokens.muted)

    def retranslate(self, titles: dict[Column, str]) -> None:
        self.titles, self._states = titles, {}
        self.all_rows = [self._row(row.run, row.notes, None) for row in self.all_rows]
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)
        self.arrange()

    # --- Qt's questions -------------------------------------------------------------------------------------

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is not Qt.Orientation.Horizontal:
            return None
        column = COLUMNS[section]
        if role == _Role.DisplayRole:
            return "" if column == "shown" else self.titles.get(column)
        if role == _Role.DecorationRole and column == "shown":
            return self._eye(self._tokens.muted, self._tokens.window)
        if role in (_Role.ToolTipRole, _Role.AccessibleTextRole):
            return self.titles.get(column)
        return _alignment(column) if role == _Role.TextAlignmentRole else None

    def flags(self, index: _Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == NAME else flags

    def data(self, index: _Index, role: int = 0) -> Any:
        row, column = self.rows[index.row()], COLUMNS[index.column()]
        if role == _Role.DisplayRole:
            return cell(row, column)
        if role == _Role.EditRole:
            return row.run.name
        if role == _Role.DecorationRole and column == "shown" and row.path in self.shown:
            return self._eye(getattr(self._tokens, self.shown[row.path]))
        if role == _Role.ForegroundRole and row.notes.archived:
            return self._muted
        if role == _Role.ToolTipRole:
            return plain_tip(self._tip(row, column))
        if role == _Role.AccessibleTextRole and column == "shown":
            return self.titles.get("shown") if row.path in self.shown else ""
        return _alignment(column) if role == _Role.TextAlignmentRole else None

    def setData(self, index: _Index, value: Any, role: int = _Role.EditRole) -> bool:  # noqa: N802 - Qt's name
        row = self.rows[index.row()]
        name = str(value).strip()
        if role == _Role.EditRole and name != row.run.name:
            self.renamed.emit(row.path, name)
        return False  # the folder decides, and tells at the next look

    def _tip(self, row: Row, column: Column) -> str:
        """Of what may have no room, or says more than its cell."""
        if column == "shown":
            return self.titles.get("shown", "")
        if column == "name":
            return "\n".join(filter(None, (str(row.path), row.notes.note[:400])))
        if column == "data":
            return "\n".join(map(words.data_name, row.run.data))
        return ", ".join(row.notes.tags) if column == "tags" else ""

    def _eye(self, colour: str, ground: str = "") -> QIcon:
        """On a ground of its own, so that its colour is seen in a selected row too."""
        if colour not in self._icons:
            self._icons[colour] = _eye(colour, ground or self._tokens.surface)
        return self._icons[colour]


def _eye(colour: str, ground: str) -> QIcon:
    made = QIcon()
    for scale in (1, 2, 3):
        picture = QPixmap(_EYE * scale)
        picture.setDevicePixelRatio(scale)
        picture.fill(Qt.GlobalColor.transparent)
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(QColor(ground))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(QRectF(0, 0, _EYE.width(), _EYE.height()), 3, 3)
        painter.drawPixmap(2, 0, pixmap("eye", colour, scale))
        painter.end()
        for mode in (QIcon.Mode.Normal, QIcon.Mode.Selected):
            made.addPixmap(picture, mode)
    return made


def _alignment(column: Column) -> Qt.AlignmentFlag:
    if column == "shown":
        return Qt.AlignmentFlag.AlignCenter
    side = Qt.AlignmentFlag.AlignRight if column in _NUMBERS else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def cell(row: Row, column: Column) -> str:
    """The text of one cell."""
    run = row.run
    match column:
        case "shown":
            return ""
        case "name":
            return run.name
        case "state":
            return words.disk_state(run.state)
        case "step":
            whole = words.count(run.step)
            return f"{whole} / {words.count(run.total_steps)}" if run.total_steps else whole
        case "loss":
            return words.loss(run.best_loss)
        case "speed":
            return words.rate(run.tokens_per_s)
        case "time":
            return words.duration(run.seconds or None)
        case "preset":
            return run.preset or "–"
        case "data":
            return words.data_names(run.data)
        case "started":
            return words.when(run.started)
        case "tags":
            return ", ".join(row.notes.tags)
