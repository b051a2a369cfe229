"""Table of the runs: columns, item model, a proxy model that searches and sorts, and the view."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QItemSelectionModel, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QMenu

from app.core.history.run_list import RunRow
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import plain_tooltip
from app.widgets.table import Column, Index, Role, RowTable, TableModel, number_column

_MIN_WIDTH: Final = 34  # pixels
_MIN_ROWS: Final = 5  # visible, header included
_STATE_ORDER: Final = ("running", "interrupted", "failed", "stopped", "finished")


def _format_steps(row: RunRow) -> str:
    steps = formatting.format_count(row.run.step)
    return f"{steps} / {formatting.format_count(row.run.total_steps)}" if row.run.total_steps else steps


RUN_COLUMNS: Final[dict[str, Column[RunRow]]] = {
    "shown": Column("runs.shown_in_plots", lambda _: "", _MIN_WIDTH),
    "name": Column("runs.name", lambda row: formatting.format_run_name(row.run.name, row.run.host)),
    "state": Column("runs.state", lambda row: formatting.format_stored_run_state(row.run.state), 84),
    "step": number_column("runs.step_count", _format_steps, 108),
    "loss": number_column("runs.best_loss", lambda row: formatting.format_loss(row.run.best_loss), 76),
    "speed": number_column("runs.tokens_s", lambda row: formatting.format_rate(row.run.tokens_per_s), 76, 580),
    "time": number_column(
        "runs.training_time", lambda row: formatting.format_duration(row.run.seconds or None), 92, 890
    ),
    "preset": Column("runs.preset", lambda row: row.run.preset or "–", 104, 800),
    "data": Column("common.data", lambda row: formatting.format_data_sources(row.run.data), 136, 1130),
    "started": Column("runs.started", lambda row: formatting.format_timestamp(row.run.started), 124, 700),
    "tags": Column("runs.tags", lambda row: ", ".join(row.notes.tags), 110, 1000),
}
_SORT_KEYS: Final[dict[str, Callable[[RunRow], Any]]] = {
    "name": lambda row: natural_sort_key(row.run.name),
    "state": lambda row: _STATE_ORDER.index(row.run.state),
    "step": lambda row: row.run.step,
    "loss": lambda row: row.run.best_loss,
    "speed": lambda row: row.run.tokens_per_s,
    "time": lambda row: row.run.seconds or None,
    "preset": lambda row: natural_sort_key(row.run.preset),
    "data": lambda row: natural_sort_key(formatting.format_data_sources(row.run.data)) if row.run.data else None,
    "started": lambda row: row.run.started,
    "tags": lambda row: natural_sort_key(", ".join(row.notes.tags)),
}
NAME: Final = list(RUN_COLUMNS).index("name")
SHOWN: Final = list(RUN_COLUMNS).index("shown")


def natural_sort_key(text: str) -> str | None:
    """A sort key that sorts "run 9" before "run 10"; None for an empty text."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), text.casefold()) or None


class RunsModel(TableModel[RunRow]):
    """Runs; those shown in the plots have the color of their curve."""

    rename_requested = Signal(Path, str)

    def __init__(self, palette: Palette) -> None:
        super().__init__(RUN_COLUMNS, lambda row: row.path)
        self.overlays: dict[Path, str] = {}  # runs shown in the plots, and their palette colors
        self.retheme(palette)

    def retheme(self, palette: Palette) -> None:
        self._palette, self._eye = palette, icon("eye", palette.muted, palette.muted)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal:
            if role in (Role.ToolTipRole, Role.AccessibleTextRole):
                return super().headerData(section, orientation, Role.DisplayRole)
            if section == SHOWN and role in (Role.DisplayRole, Role.DecorationRole):
                return self._eye if role == Role.DecorationRole else ""
        return super().headerData(section, orientation, role)

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == NAME else flags

    def data(self, index: Index, role: int = 0) -> Any:
        row = self.rows[index.row()]
        is_overlay_cell = index.column() == SHOWN and row.path in self.overlays
        match role:
            case Role.EditRole:
                return row.run.name
            case Role.DecorationRole if is_overlay_cell:
                return QColor(getattr(self._palette, self.overlays[row.path]))
            case Role.ForegroundRole if row.notes.archived:
                return QColor(self._palette.muted)
            case Role.ToolTipRole:
                data = map(formatting.format_data_source, row.run.data)
                return plain_tooltip("\n".join(filter(None, (str(row.path), *data, row.notes.note[:400]))))
            case Role.AccessibleTextRole if is_overlay_cell:
                return tr("runs.shown_in_plots")
        return super().data(index, role)

    def setData(self, index: Index, value: Any, role: int = Role.EditRole) -> bool:  # noqa: N802 - Qt's name
        """Request to rename the run; the next refresh brings its new name."""
        row, name = self.rows[index.row()], str(value).strip()
        if role == Role.EditRole and name != row.run.name:
            self.rename_requested.emit(row.path, name)
        return False


class RunsProxy(QSortFilterProxyModel):
    """Searches and sorts runs. Runs without a value are last in both directions; equal runs are newest first."""

    def __init__(self, model: RunsModel) -> None:
        super().__init__()
        self._model = model
        self._words: list[str] = []
        self._archived: bool | None = False
        self.setSourceModel(model)

    def set_filter(self, search: str, archived: bool | None) -> None:
        """Show runs that contain every word of `search`. `archived`: only archived runs, or only others; None: all."""
        self._words, self._archived = search.casefold().split(), archived
        self.invalidate()  # `invalidateRowsFilter` is deprecated, its replacement is not in Qt 6.8

    def filterAcceptsRow(self, source_row: int, _parent: Index) -> bool:  # noqa: N802 - Qt's name
        row = self._model.rows[source_row]
        if self._archived not in (None, row.notes.archived):
            return False
        data = (path if path.startswith("builtin:") else Path(path).name for path in row.run.data)
        state = formatting.format_stored_run_state(row.run.state)
        searched = "\n".join(
            (row.run.name, row.run.host, row.run.preset, *data, *row.notes.tags, row.notes.note, state)
        ).casefold()
        return all(word in searched for word in self._words)

    def lessThan(self, left: Index, right: Index) -> bool:  # noqa: N802 - Qt's name
        one, other = self._sort_key(left), self._sort_key(right)
        if one is None or other is None:  # Qt reverses the arguments in descending order
            return one is not other and (other is None) == (self.sortOrder() is Qt.SortOrder.AscendingOrder)
        return bool(one < other)

    def _sort_key(self, index: Index) -> Any:
        row, name = self._model.rows[index.row()], self._model.names[index.column()]
        return _SORT_KEYS[name](row) if name in _SORT_KEYS else row.path not in self._model.overlays


class RunsTable(RowTable[RunRow]):
    """Sortable table with one row per run; F2 edits a name."""

    def __init__(self, model: RunsModel, proxy: RunsProxy) -> None:
        super().__init__(model, "runs", proxy=proxy)
        self.key_column = NAME
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setMinimumHeight(_MIN_ROWS * self.verticalHeader().defaultSectionSize())
        header = self.horizontalHeader()
        # An empty selection: to highlight the selected sections, the header asks for the flags of every cell.
        header.setSelectionModel(QItemSelectionModel(proxy, header))
        header.setMinimumSectionSize(_MIN_WIDTH)
        header.setSectionsMovable(True)
        self.setSortingEnabled(True)
        self.sortByColumn(model.names.index("started"), Qt.SortOrder.DescendingOrder)

        self.sort_menu = QMenu(self)  # sorts as clicks on the header do, for use by keyboard
        for section in range(len(RUN_COLUMNS)):
            self.sort_menu.addAction("").triggered.connect(partial(self._sort, section))

    def _sort(self, section: int, _checked: bool = False) -> None:
        header, order = self.horizontalHeader(), Qt.SortOrder
        reverse = section == header.sortIndicatorSection() and header.sortIndicatorOrder() is order.AscendingOrder
        self.sortByColumn(section, order.DescendingOrder if reverse else order.AscendingOrder)

    def retranslate(self) -> None:
        super().retranslate()
        self.setAccessibleName(tr("runs.runs"))
        self.sort_menu.setTitle(tr("runs.sort_by"))
        for action, column in zip(self.sort_menu.actions(), RUN_COLUMNS.values(), strict=True):
            action.setText(tr(column.title))

    @property
    def is_editing(self) -> bool:
        return self.state() is QAbstractItemView.State.EditingState

    def edit_name(self) -> None:
        """Edit the name of the selected run."""
        index = self.selectionModel().selectedRows(NAME)[0]
        self.scrollTo(index)
        self.edit(index)
