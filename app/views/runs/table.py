"""The table of runs: how it looks, and that the selection and the place stay when its rows change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from app.state.runs.run_rows import COLUMNS, Column
from app.theme.tokens import SPACE
from app.views.runs.model import NAME, RunsModel

_NARROWEST: Final = 34  # pixels: of a column
_WIDTHS: Final[dict[Column, int]] = {
    "shown": _NARROWEST,
    "name": 190,
    "state": 84,
    "step": 108,
    "loss": 76,
    "speed": 76,
    "time": 92,
    "preset": 104,
    "data": 136,
    "started": 124,
    "tags": 110,
}
_NEEDED: Final[dict[Column, int]] = {
    "speed": 580,
    "started": 700,
    "preset": 800,
    "time": 890,
    "tags": 1000,
    "data": 1130,
}  # width of the page from which a column is shown


class RunsTable(QTableView):
    """Rows are runs. F2 edits a name. The name has the width that the other columns leave."""

    arranged = Signal()  # a column has another width, or stands elsewhere

    def __init__(self, model: RunsModel) -> None:
        super().__init__()
        self._model = model
        self.restoring = False
        self._widths = dict(_WIDTHS)
        self.setObjectName("runs")
        self.setModel(model)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setIconSize(QSize(20, 16))
        self.setMinimumHeight(5 * (self.fontMetrics().lineSpacing() + SPACE + 2))
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().lineSpacing() + SPACE + 2)
        self._set_up_header()

    def _set_up_header(self) -> None:
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        # One of its own, always empty: else it asks for the flags of every cell to paint itself beside a selection.
        header.setSelectionModel(QItemSelectionModel(self._model, header))
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setMinimumSectionSize(_NARROWEST)
        for place, column in enumerate(COLUMNS):
            self.setColumnWidth(place, _WIDTHS[column])
        header.setSectionResizeMode(NAME, QHeaderView.ResizeMode.Stretch)
        header.setSortIndicator(COLUMNS.index("started"), Qt.SortOrder.DescendingOrder)
        header.setSectionsClickable(True)
        header.setSortIndicatorShown(True)
        header.sortIndicatorChanged.connect(self._sort)
        header.setSectionsMovable(True)
        header.sectionResized.connect(self._on_resized)
        header.sectionMoved.connect(self.arranged)

    @property
    def columns(self) -> dict[str, int]:
        """The widths of the columns, in the order in which they stand; of those too that are left out just now."""
        header = self.horizontalHeader()
        return {
            name: self._widths[name] for name in sorted(COLUMNS, key=lambda n: header.visualIndex(COLUMNS.index(n)))
        }

    def arrange(self, columns: Mapping[str, int]) -> None:
        """Put the columns as `columns` was once; those that it does not know follow."""
        header, known = self.horizontalHeader(), [name for name in columns if name in COLUMNS]
        for place, name in enumerate(known):
            column = COLUMNS.index(name)
            header.moveSection(header.visualIndex(column), place)
            self.setColumnWidth(column, max(_NARROWEST, columns[name]))

    def _on_resized(self, place: int, _before: int, width: int) -> None:
        if width and place != NAME:  # 0: it is left out
            self._widths[COLUMNS[place]] = width
            self.arranged.emit()

    def leave_out(self, width: int) -> None:
        """A narrow page leaves out what matters less, instead of scrolling sideways."""
        for column, needed in _NEEDED.items():
            self.setColumnHidden(COLUMNS.index(column), width < needed)

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        """Who comes here by key finds a run chosen: a click chooses one by itself."""
        super().focusInEvent(event)
        by_mouse = event.reason() in (Qt.FocusReason.MouseFocusReason, Qt.FocusReason.PopupFocusReason)
        if not by_mouse and self._model.rows and not self.selected_places():
            self.selectRow(max(0, self.currentIndex().row()))

    @property
    def is_editing(self) -> bool:
        return self.state() is QAbstractItemView.State.EditingState

    def selected_places(self) -> list[int]:
        """The selected rows, from top to bottom. Qt's `selectedRows` asks for the flags of every cell: 0.1 s."""
        selection = self.selectionModel().selection()
        ranges = [selection.at(place) for place in range(selection.size())]
        return sorted({place for found in ranges for place in range(found.top(), found.bottom() + 1)})

    def _sort(self, column: int, order: Qt.SortOrder) -> None:
        with self.staying():
            self._model.sort(column, order)

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        """Around a change of the rows: what was selected and where the table was stay, as far as they are there."""
        selected = [self._model.rows[place].path for place in self.selected_places()]
        now = self.currentIndex()
        current = self._model.rows[now.row()].path if now.isValid() else None
        before = [row.path for row in self._model.rows]
        at = self.verticalScrollBar().value()
        self.restoring = True
        try:
            yield
            if [row.path for row in self._model.rows] != before:
                self.select(selected, current)
                self._stay_near(now.row())
                self.verticalScrollBar().setValue(at)
        finally:
            self.restoring = False

    def _stay_near(self, row: int) -> None:
        """Keys go on from where a row is gone, not from the first one."""
        if row >= 0 and self._model.rows and not self.currentIndex().isValid():
            near = self._model.index(min(row, len(self._model.rows) - 1), NAME)
            self.selectionModel().setCurrentIndex(near, QItemSelectionModel.SelectionFlag.NoUpdate)

    def select(self, paths: list[Path], current: Path | None = None) -> None:
        """Select these runs and no others."""
        wanted = set(paths)
        places = [place for place, row in enumerate(self._model.rows) if row.path in wanted]
        selection, last = QItemSelection(), len(COLUMNS) - 1
        for first, end in _stretches(places):
            selection.select(self._model.index(first, 0), self._model.index(end, last))
        model, flags = self.selectionModel(), QItemSelectionModel.SelectionFlag
        row = self._model.place(current) if current is not None else (places[0] if places else None)
        if row is not None:
            model.setCurrentIndex(self._model.index(row, NAME), flags.NoUpdate)
        model.select(selection, flags.ClearAndSelect)


def _stretches(places: list[int]) -> Iterator[tuple[int, int]]:
    """Rows in ascending order as (first, last) of those that follow one another."""
    start = 0
    for place in range(1, len(places) + 1):
        if place == len(places) or places[place] != places[place - 1] + 1:
            yield places[start], places[place - 1]
            start = place
