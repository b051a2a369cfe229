"""Table of the runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QItemSelectionModel, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QColor, QFocusEvent, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QAbstractItemView, QMenu

from app.core.history.run_list import RunRow
from app.core.history.run_rows import natural_sort_key
from app.texts import tr
from app.theme.icons import pixmap
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import plain_tooltip
from app.widgets.table import Column, Index, Role, RowTable, TableModel, number_column

_ICON_SIZE: Final = QSize(20, 16)
_MAX_NOTE_CHARS: Final = 400  # of a tooltip
_MIN_WIDTH: Final = 34  # pixels
_MIN_ROWS: Final = 5  # visible, header included
_STATE_ORDER: Final = ("running", "interrupted", "failed", "stopped", "finished")


def _format_steps(row: RunRow) -> str:
    steps = formatting.format_count(row.run.step)
    return f"{steps} / {formatting.format_count(row.run.total_steps)}" if row.run.total_steps else steps


RUN_COLUMNS: Final[dict[str, Column[RunRow]]] = {
    "shown": Column("runs.shown_in_plots", lambda _: "", _MIN_WIDTH, alignment=Qt.AlignmentFlag.AlignCenter),
    "name": Column("runs.name", lambda row: row.run.name),
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


class RunsModel(TableModel[RunRow]):
    """Runs; those shown in the plots have an icon."""

    rename_requested = Signal(Path, str)

    def __init__(self, palette: Palette) -> None:
        super().__init__(RUN_COLUMNS, lambda row: row.path)
        self.overlays: dict[Path, str] = {}  # runs shown in the plots, and their palette colors
        self.retheme(palette)

    def retheme(self, palette: Palette) -> None:
        self._palette, self._icons = palette, dict[str, QIcon]()

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal:
            if role in (Role.ToolTipRole, Role.AccessibleTextRole):
                return super().headerData(section, orientation, Role.DisplayRole)
            if section == SHOWN and role == Role.DecorationRole:
                return self._overlay_icon(self._palette.muted, self._palette.window)
            if section == SHOWN and role == Role.DisplayRole:
                return ""
        return super().headerData(section, orientation, role)

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == NAME else flags

    def data(self, index: Index, role: int = 0) -> Any:
        row, column = self.rows[index.row()], self.names[index.column()]
        is_overlay_cell = column == "shown" and row.path in self.overlays
        match role:
            case Role.EditRole:
                return row.run.name
            case Role.DecorationRole if is_overlay_cell:
                return self._overlay_icon(getattr(self._palette, self.overlays[row.path]), self._palette.surface)
            case Role.ForegroundRole if row.notes.archived:
                return QColor(self._palette.muted)
            case Role.ToolTipRole:
                return plain_tooltip(_format_tooltip(row, column))
            case Role.AccessibleTextRole if is_overlay_cell:
                return tr("runs.shown_in_plots")
        return super().data(index, role)

    def setData(self, index: Index, value: Any, role: int = Role.EditRole) -> bool:  # noqa: N802 - Qt's name
        """Request to rename the run; the next refresh brings its new name."""
        row, name = self.rows[index.row()], str(value).strip()
        if role == Role.EditRole and name != row.run.name:
            self.rename_requested.emit(row.path, name)
        return False

    def _overlay_icon(self, color: str, background: str) -> QIcon:
        if color not in self._icons:
            self._icons[color] = _paint_overlay_icon(color, background)
        return self._icons[color]


class RunsTable(RowTable[RunRow]):
    """Sortable table with one row per run; F2 edits a name."""

    def __init__(self, model: RunsModel) -> None:
        super().__init__(model, "runs")
        self._model = model
        self.key_column = NAME
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setIconSize(_ICON_SIZE)
        self.setMinimumHeight(_MIN_ROWS * self.verticalHeader().defaultSectionSize())
        header = self.horizontalHeader()
        # An empty selection: to highlight the selected sections, the header asks for the flags of every cell.
        header.setSelectionModel(QItemSelectionModel(model, header))
        header.setMinimumSectionSize(_MIN_WIDTH)
        header.setSectionsMovable(True)
        header.setSectionsClickable(True)
        header.setSortIndicatorShown(True)
        header.setSortIndicator(model.names.index("started"), Qt.SortOrder.DescendingOrder)

    def sort_key(self) -> Callable[[RunRow], Any]:
        """Sort key of the column that the user has selected."""
        name = self.row_model.names[self.horizontalHeader().sortIndicatorSection()]
        return _SORT_KEYS.get(name, lambda row: row.path not in self._model.overlays)

    @property
    def is_descending(self) -> bool:
        return self.horizontalHeader().sortIndicatorOrder() is Qt.SortOrder.DescendingOrder

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        """Select a row when the focus comes by keyboard."""
        super().focusInEvent(event)
        by_mouse = event.reason() in (Qt.FocusReason.MouseFocusReason, Qt.FocusReason.PopupFocusReason)
        if not by_mouse and self.row_model.rows and not self.selectionModel().hasSelection():
            self.selectRow(max(0, self.currentIndex().row()))

    @property
    def is_editing(self) -> bool:
        return self.state() is QAbstractItemView.State.EditingState

    def edit_name(self) -> None:
        """Edit the name of the selected run."""
        index = self.row_model.index(self.row_model.rows.index(self.selected_rows()[0]), NAME)
        self.scrollTo(index)
        self.edit(index)


class SortMenu(QMenu):
    """Sorts the table as clicks on its header do, for use by keyboard."""

    def __init__(self, table: RunsTable) -> None:
        super().__init__(table)
        self._header = table.horizontalHeader()
        self.columns: dict[str, QAction] = {}
        group = QActionGroup(self)
        for section, name in enumerate(RUN_COLUMNS):
            action = self.columns[name] = group.addAction("")
            action.setCheckable(True)
            action.triggered.connect(partial(self._sort, section))
            self.addAction(action)
        self.aboutToShow.connect(lambda: self.actions()[self._header.sortIndicatorSection()].setChecked(True))

    def _sort(self, section: int, _checked: bool = False) -> None:
        ascending, descending = Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder
        reverse = section == self._header.sortIndicatorSection() and self._header.sortIndicatorOrder() is ascending
        self._header.setSortIndicator(section, descending if reverse else ascending)

    def retranslate(self) -> None:
        self.setTitle(tr("runs.sort_by"))
        for name, action in self.columns.items():
            action.setText(tr(RUN_COLUMNS[name].title))


def _paint_overlay_icon(color: str, background: str) -> QIcon:
    """An eye on its own background, so that its color is visible in a selected row."""
    icon = QIcon()
    for scale in (1, 2, 3):
        image = QPixmap(_ICON_SIZE * scale)
        image.setDevicePixelRatio(scale)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(QColor(background))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(QRectF(0, 0, _ICON_SIZE.width(), _ICON_SIZE.height()), 3, 3)
        painter.drawPixmap(2, 0, pixmap("eye", color, scale))
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
