"""Grid of plots: two columns with the loss across both, or one enlarged plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.pages.plots.chart import Chart
from app.theme.palette import SPACING

_WIDE: Final = "loss"
_MANY: Final = "time"  # its legend has many entries
_NARROW: Final = 560  # pixels; below, a scrolling page has one column
_ROW: Final = 100  # minimum height in pixels; the first row has more
_TALL_ROW: Final = 190  # of a page that scrolls
_FIRST: Final = 1.6  # height of the first row relative to the others


class Board(QWidget):
    """Builds each chart on first use. Takes the available height and ignores the size hints of canvases."""

    made = Signal(object)  # Chart

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.charts: dict[str, Chart] = {}
        self.shown: list[str] = []  # charts of the sub-page, also while one is enlarged
        self.enlarged = ""
        self._scrolls = False
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACING)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)

    def visible(self) -> list[Chart]:
        """Charts that are at least partly visible."""
        return [chart for chart in self.charts.values() if chart.isVisible() and not chart.visibleRegion().isEmpty()]

    def chart(self, name: str) -> Chart:
        if name not in self.charts:
            self.charts[name] = Chart(name, self, menu=True, below=name == _MANY)
            self.charts[name].hide()
            self.made.emit(self.charts[name])
        return self.charts[name]

    def show_charts(self, names: Sequence[str], *, scrolls: bool) -> None:
        """Show these in this order. `scrolls`: use comfortable heights instead of fitting all into the page."""
        if (list(names), scrolls) != (self.shown, self._scrolls):
            self.shown, self._scrolls = list(names), scrolls
            self._place()

    def enlarge(self, name: str) -> None:
        """Show one chart alone; "" shows all again."""
        self.enlarged = name
        self._place()

    def hasHeightForWidth(self) -> bool:  # noqa: N802 - Qt's name
        return False  # wrapped texts must not change the height of plots

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        if (event.oldSize().width() < _NARROW) is not (event.size().width() < _NARROW):
            self._place()

    def _place(self) -> None:
        if self.enlarged not in self.shown:
            self.enlarged = ""
        names = [self.enlarged] if self.enlarged else self.shown
        columns = 1 if self.enlarged or (self._scrolls and self.width() < _NARROW) else 2
        for name, chart in self.charts.items():
            self._grid.removeWidget(chart)
            chart.maximised = name == self.enlarged
            if name not in names:
                chart.hide()
        row = column = 0
        for name in names:
            span = columns if name == _WIDE else 1
            self._grid.addWidget(self.chart(name), row, column, 1, span)
            self.chart(name).show()
            column += span
            if column >= columns:
                row, column = row + 1, 0
        self._size_rows(row + (column > 0))
        for place in (0, 1):
            self._grid.setColumnStretch(place, 1 if place < columns else 0)

    def _size_rows(self, rows: int) -> None:
        least = _TALL_ROW if self._scrolls and not self.enlarged else _ROW
        for row in range(max(rows, self._grid.rowCount())):
            share = (_FIRST if row == 0 else 1.0) if row < rows else 0.0
            self._grid.setRowStretch(row, round(10 * share))
            self._grid.setRowMinimumHeight(row, round(least * share))
        spacing = SPACING * max(0, rows - 1)
        self.setMinimumHeight(round(least * (_FIRST + rows - 1)) + spacing)
