"""The order of the runs as a menu: by keys too, which Qt's headers do not take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu, QTableView

from app.state.runs.run_rows import COLUMNS, Column

_Order = Qt.SortOrder


class SortMenu(QMenu):
    """Sorts as a click on the header does: by another column upwards, by the same one the other way round."""

    def __init__(self, table: QTableView) -> None:
        super().__init__(table)
        self._header = table.horizontalHeader()
        self.columns: dict[Column, QAction] = {}
        group = QActionGroup(self)
        for place, column in enumerate(COLUMNS):
            action = self.addAction("")
            action.setCheckable(True)
            action.triggered.connect(partial(self._sort, place))
            group.addAction(action)
            self.columns[column] = action
        self.aboutToShow.connect(self._mark)

    def _mark(self) -> None:
        self.columns[COLUMNS[self._header.sortIndicatorSection()]].setChecked(True)

    def _sort(self, place: int, _checked: bool = False) -> None:
        again = place == self._header.sortIndicatorSection()
        rising = self._header.sortIndicatorOrder() is _Order.AscendingOrder
        self._header.setSortIndicator(place, _Order.DescendingOrder if again and rising else _Order.AscendingOrder)

    def word(self, title: str, titles: Mapping[Column, str]) -> None:
        self.setTitle(title)
        for column, text in titles.items():
            self.columns[column].setText(text)
