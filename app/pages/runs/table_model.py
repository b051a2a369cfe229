"""Item models of the runs table: all runs, sorted, and a proxy that filters them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QRectF, QSize, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap

from app.core.history import run_rows
from app.core.history.run_rows import RUN_COLUMNS, ArchiveFilter, RunColumn, RunRow
from app.texts import tr
from app.theme.icons import pixmap
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import plain_tooltip
from app.widgets.table import Index, Role, TableModel

NAME: Final = RUN_COLUMNS.index("name")
SHOWN: Final = RUN_COLUMNS.index("shown")
ICON_SIZE: Final = QSize(20, 16)
_MAX_NOTE_CHARS: Final = 400  # of a tooltip


class RunsModel(TableModel[RunRow]):
    """All runs. Texts are formatted when they are painted, so thousands of runs stay cheap."""

    rename_requested = Signal(Path, str)
    columns = RUN_COLUMNS
    numeric_columns = ("step", "loss", "speed", "time")

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.overlays: dict[Path, str] = {}  # runs shown in the plots, and their palette colours
        self.sort_column: RunColumn = "started"
        self.descending = True
        self.retheme(palette)

    def set_rows(self, rows: Sequence[RunRow]) -> None:
        """Update changed rows, remove missing ones, append new ones: the selection of the others stays."""
        wanted = {row.path: row for row in rows}
        for place in reversed(range(len(self.rows))):
            row = wanted.pop(self.rows[place].path, None)
            if row is None:
                self.beginRemoveRows(self.index(-1, -1), place, place)
                del self.rows[place]
                self.endRemoveRows()
            elif row != self.rows[place]:
                self.rows[place] = row
                self.dataChanged.emit(self.index(place, 0), self.index(place, len(RUN_COLUMNS) - 1))
        if wanted:
            self.beginInsertRows(self.index(-1, -1), len(self.rows), len(self.rows) + len(wanted) - 1)
            self.rows += wanted.values()
            self.endInsertRows()
        self._sort()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self.sort_column, self.descending = RUN_COLUMNS[column], order is Qt.SortOrder.DescendingOrder
        self._sort()

    def _sort(self) -> None:
        rows = run_rows.sort_rows(self.rows, self.sort_column, descending=self.descending, overlays=self.overlays)
        if rows == self.rows:
            return
        self.layoutAboutToBeChanged.emit()
        old = self.persistentIndexList()
        places = {row.path: place for place, row in enumerate(rows)}
        new = [self.index(places[self.rows[index.row()].path], index.column()) for index in old]
        self.rows = rows
        self.changePersistentIndexList(old, new)
        self.layoutChanged.emit()

    def set_overlays(self, overlays: dict[Path, str]) -> None:
        """Set which runs are shown in the plots, and their palette colours."""
        if overlays != self.overlays:
            self.overlays = dict(overlays)
            self._sort()
            if self.rows:
                self.dataChanged.emit(self.index(0, SHOWN), self.index(len(self.rows) - 1, SHOWN))

    def retheme(self, palette: Palette) -> None:
        self._palette, self._icons = palette, dict[str, QIcon]()
        self._archived_colour = QColor(palette.muted)

    def titles(self) -> dict[str, str]:
        return {
            "shown": tr("runs.shown_in_plots"),
            "name": tr("runs.name"),
            "state": tr("runs.state"),
            "step": tr("runs.step_2"),
            "loss": tr("runs.best_loss"),
            "speed": tr("runs.tokens_s"),
            "time": tr("runs.trained_for"),
            "preset": tr("runs.preset"),
            "data": tr("common.data"),
            "started": tr("runs.started"),
            "tags": tr("runs.tags"),
        }

    def alignment(self, column: str) -> Qt.AlignmentFlag:
        return Qt.AlignmentFlag.AlignCenter if column == "shown" else super().alignment(column)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal:
            if role in (Role.ToolTipRole, Role.AccessibleTextRole):
                return self.titles()[RUN_COLUMNS[section]]
            if section == SHOWN and role == Role.DecorationRole:
                return self._overlay_icon(self._palette.muted, self._palette.window)
            if section == SHOWN and role == Role.DisplayRole:
                return ""
        return super().headerData(section, orientation, role)

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == NAME else flags

    def data(self, index: Index, role: int = 0) -> Any:
        row, column = self.rows[index.row()], RUN_COLUMNS[index.column()]
        match role:
            case Role.DisplayRole:
                return format_cell(row, column)
            case Role.EditRole:
                return row.run.name
            case Role.DecorationRole if column == "shown" and row.path in self.overlays:
                return self._overlay_icon(getattr(self._palette, self.overlays[row.path]), self._palette.surface)
            case Role.ForegroundRole if row.notes.archived:
                return self._archived_colour
            case Role.ToolTipRole:
                return plain_tooltip(_format_tooltip(row, column))
            case Role.AccessibleTextRole if column == "shown":
                return tr("runs.shown_in_plots") if row.path in self.overlays else ""
            case Role.TextAlignmentRole:
                return self.alignment(column)
        return None

    def setData(self, index: Index, value: Any, role: int = Role.EditRole) -> bool:  # noqa: N802 - Qt's name
        """Request to rename the run; the next refresh brings its new name."""
        row, name = self.rows[index.row()], str(value).strip()
        if role == Role.EditRole and name != row.run.name:
            self.rename_requested.emit(row.path, name)
        return False

    def _overlay_icon(self, colour: str, background: str) -> QIcon:
        if colour not in self._icons:
            self._icons[colour] = _paint_overlay_icon(colour, background)
        return self._icons[colour]


class RunsProxyModel(QSortFilterProxyModel):
    """Runs that match the search and the archive filter."""

    def __init__(self, model: RunsModel) -> None:
        super().__init__()
        self._model = model
        self.search_text = ""
        self.archive_filter: ArchiveFilter = "current"
        self.setSourceModel(model)

    def set_filter(self, search_text: str, archive_filter: ArchiveFilter) -> None:
        self.search_text, self.archive_filter = search_text, archive_filter
        self.invalidate()

    def row_at(self, place: int) -> RunRow:
        """The run in a row of the table."""
        return self._model.rows[self.mapToSource(self.index(place, 0)).row()]

    @property
    def rows(self) -> list[RunRow]:
        """All rows of the table, top to bottom."""
        return list(map(self.row_at, range(self.rowCount())))

    def filterAcceptsRow(self, source_row: int, _parent: Index) -> bool:  # noqa: N802 - Qt's name
        row = self._model.rows[source_row]
        return run_rows.matches_archive_filter(row, self.archive_filter) and run_rows.matches_search(
            row, self.search_text, formatting.format_stored_run_state(row.run.state)
        )

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort the source model: `lessThan` in Python takes seconds for thousands of runs."""
        self._model.sort(column, order)


def _paint_overlay_icon(colour: str, background: str) -> QIcon:
    """An eye on its own background, so that its colour is visible in a selected row."""
    icon = QIcon()
    for scale in (1, 2, 3):
        image = QPixmap(ICON_SIZE * scale)
        image.setDevicePixelRatio(scale)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(QColor(background))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(QRectF(0, 0, ICON_SIZE.width(), ICON_SIZE.height()), 3, 3)
        painter.drawPixmap(2, 0, pixmap("eye", colour, scale))
        painter.end()
        for mode in (QIcon.Mode.Normal, QIcon.Mode.Selected):
            icon.addPixmap(image, mode)
    return icon


def _format_tooltip(row: RunRow, column: str) -> str:
    match column:
        case "shown":
            return tr("runs.shown_in_plots")
        case "name":
            return "\n".join(filter(None, (str(row.path), row.notes.note[:_MAX_NOTE_CHARS])))
        case "data":
            return "\n".join(map(formatting.format_data_source, row.run.data))
        case "tags":
            return ", ".join(row.notes.tags)
    return ""


def format_cell(row: RunRow, column: str) -> str:
    run = row.run
    match column:
        case "name":
            return run.name
        case "state":
            return formatting.format_stored_run_state(run.state)
        case "step":
            steps = formatting.format_count(run.step)
            return f"{steps} / {formatting.format_count(run.total_steps)}" if run.total_steps else steps
        case "loss":
            return formatting.format_loss(run.best_loss)
        case "speed":
            return formatting.format_rate(run.tokens_per_s)
        case "time":
            return formatting.format_duration(run.seconds or None)
        case "preset":
            return run.preset or "–"
        case "data":
            return formatting.format_data_sources(run.data)
        case "started":
            return formatting.format_timestamp(run.started)
        case "tags":
            return ", ".join(row.notes.tags)
    return ""
