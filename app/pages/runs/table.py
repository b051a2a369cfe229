"""View of the runs table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QModelIndex, Qt, Signal
from PySide6.QtGui import QFocusEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from app.core.history.run_rows import RUN_COLUMNS, RunColumn, RunRow
from app.pages.runs.table_model import ICON_SIZE, NAME, RunsModel, RunsProxyModel
from app.widgets.table import configure_table

_MIN_WIDTH: Final = 34  # pixels
_WIDTHS: Final[dict[RunColumn, int]] = {
    "shown": _MIN_WIDTH, "name": 190, "state": 84, "step": 108, "loss": 76, "speed": 76, "time": 92, "preset": 104,
    "data": 136, "started": 124, "tags": 110,
}  # fmt: skip
_MIN_PAGE_WIDTHS: Final[dict[RunColumn, int]] = {
    "speed": 580, "started": 700, "preset": 800, "time": 890, "tags": 1000, "data": 1130,
}  # fmt: skip
_MIN_ROWS: Final = 5  # visible, header included


class RunsTable(QTableView):
    """Sortable table with one row per run; F2 edits a name. The name column fills the remaining width."""

    columns_changed = Signal()  # a column was moved or resized

    def __init__(self, model: RunsModel) -> None:
        super().__init__()
        self.proxy = RunsProxyModel(model)
        self._widths = dict(_WIDTHS)
        self.setObjectName("runs")
        self.setModel(self.proxy)
        configure_table(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setIconSize(ICON_SIZE)
        self.setMinimumHeight(_MIN_ROWS * self.verticalHeader().defaultSectionSize())
        header = self.horizontalHeader()
        # An empty selection: to highlight the selected sections, the header asks for the flags of every cell.
        header.setSelectionModel(QItemSelectionModel(self.proxy, header))
        header.setMinimumSectionSize(_MIN_WIDTH)
        for section, column in enumerate(RUN_COLUMNS):
            self.setColumnWidth(section, _WIDTHS[column])
        header.setSectionResizeMode(NAME, QHeaderView.ResizeMode.Stretch)
        header.setSortIndicator(RUN_COLUMNS.index("started"), Qt.SortOrder.DescendingOrder)
        header.setSectionsMovable(True)
        self.setSortingEnabled(True)
        header.sectionResized.connect(self._on_section_resized)
        header.sectionMoved.connect(self.columns_changed)
        self.proxy.rowsRemoved.connect(self._on_rows_removed)

    @property
    def column_widths(self) -> dict[str, int]:
        """Column widths in pixels, in visual order, including hidden columns."""
        header = self.horizontalHeader()
        sections = map(header.logicalIndex, range(len(RUN_COLUMNS)))
        return {RUN_COLUMNS[section]: self._widths[RUN_COLUMNS[section]] for section in sections}

    def restore_columns(self, widths: Mapping[str, int]) -> None:
        """Restore the order and widths that `column_widths` returned; columns that it lacks come last."""
        header, known = self.horizontalHeader(), [name for name in RUN_COLUMNS if name in widths]
        for place, name in enumerate(sorted(known, key=list(widths).index)):
            section = RUN_COLUMNS.index(name)
            header.moveSection(header.visualIndex(section), place)
            self.setColumnWidth(section, max(_MIN_WIDTH, widths[name]))

    def _on_section_resized(self, section: int, _old: int, width: int) -> None:
        if width and section != NAME:  # 0: hidden
            self._widths[RUN_COLUMNS[section]] = width
            self.columns_changed.emit()

    def hide_columns(self, page_width: int) -> None:
        """Hide the less important columns of a narrow page, so that it does not scroll horizontally."""
        for column, min_width in _MIN_PAGE_WIDTHS.items():
            self.setColumnHidden(RUN_COLUMNS.index(column), page_width < min_width)

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        """Select a row when the focus comes by keyboard."""
        super().focusInEvent(event)
        by_mouse = event.reason() in (Qt.FocusReason.MouseFocusReason, Qt.FocusReason.PopupFocusReason)
        if not by_mouse and self.proxy.rowCount() and not self.selectionModel().hasSelection():
            self.selectRow(max(0, self.currentIndex().row()))

    def _on_rows_removed(self, _parent: QModelIndex, first: int, _last: int) -> None:
        """Keyboard navigation continues at the position of a removed run."""
        if not self.selectionModel().hasSelection():
            index = self.proxy.index(min(first, self.proxy.rowCount() - 1), NAME)
            self.selectionModel().setCurrentIndex(index, QItemSelectionModel.SelectionFlag.NoUpdate)

    @property
    def is_editing(self) -> bool:
        return self.state() is QAbstractItemView.State.EditingState

    def selected_rows(self) -> list[RunRow]:
        """The selected runs, top to bottom."""
        # `selectedRows` asks for the flags of every cell, which takes 0.1 s for thousands of runs.
        selection = self.selectionModel().selection()
        ranges = [selection.at(place) for place in range(selection.size())]
        places = {place for part in ranges for place in range(part.top(), part.bottom() + 1)}
        return list(map(self.proxy.row_at, sorted(places)))

    def select(self, paths: Collection[Path]) -> None:
        """Select exactly these runs."""
        model, selection, flag = self.selectionModel(), QItemSelection(), QItemSelectionModel.SelectionFlag
        for place, row in enumerate(self.proxy.rows):
            if row.path in paths:
                index = self.proxy.index(place, NAME)
                if selection.isEmpty():
                    model.setCurrentIndex(index, flag.NoUpdate)
                selection.select(index, index)
        model.select(selection, flag.ClearAndSelect | flag.Rows)
