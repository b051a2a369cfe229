"""Grid of plots: two columns with the loss across both, or one maximized plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.pages.plots.chart import Chart
from app.theme.palette import SPACING

_WIDE_PLOT: Final = "loss"
_NARROW: Final = 560  # pixels; below, a scrolling page has one column
_MIN_ROW_HEIGHT: Final = 100  # pixels; the first row has more
_MIN_SCROLLING_ROW_HEIGHT: Final = 190
_FIRST_ROW_FACTOR: Final = 1.6  # height of the first row relative to the others


class PlotGrid(QWidget):
    """Builds each chart on first use. Takes the available height and ignores the size hints of canvases."""

    chart_added = Signal(object)  # Chart

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.charts: dict[str, Chart] = {}
        self.displayed: list[str] = []  # charts of the sub-page, also while one is maximized
        self.maximized = ""
        self._scrolls = False
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACING)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)

    def visible_charts(self) -> list[Chart]:
        """Return the charts that are at least partly visible."""
        return [chart for chart in self.charts.values() if chart.isVisible() and not chart.visibleRegion().isEmpty()]

    def show_charts(self, names: Sequence[str], *, scrolls: bool) -> None:
        """Show these in this order. `scrolls`: use comfortable heights instead of fitting all into the page."""
        if (list(names), scrolls) != (self.displayed, self._scrolls):
            self.displayed, self._scrolls = list(names), scrolls
            self._arrange()

    def maximize(self, name: str) -> None:
        """Show one chart alone; "" shows all again."""
        self.maximized = name
        self._arrange()

    def hasHeightForWidth(self) -> bool:  # noqa: N802 - Qt's name
        return False  # wrapped texts must not change the height of plots

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        if (event.oldSize().width() < _NARROW) is not (event.size().width() < _NARROW):
            self._arrange()

    def _chart(self, name: str) -> Chart:
        if name not in self.charts:
            self.charts[name] = Chart(name, self, has_menu=True)
            self.chart_added.emit(self.charts[name])
        return self.charts[name]

    def _arrange(self) -> None:
        if self.maximized not in self.displayed:
            self.maximized = ""
        charts = [self._chart(name) for name in ([self.maximized] if self.maximized else self.displayed)]
        columns = 1 if self.maximized or (self._scrolls and self.width() < _NARROW) else 2
        for chart in self.charts.values():
            self._grid.removeWidget(chart)
            chart.is_maximized = chart.name == self.maximized
            if chart not in charts:
                chart.hide()
        place = 0
        for chart in charts:
            span = columns if chart.name == _WIDE_PLOT else 1
            self._grid.addWidget(chart, place // columns, place % columns, 1, span)
            chart.show()
            place += span
        for column in (0, 1):
            self._grid.setColumnStretch(column, 1 if column < columns else 0)
        self._set_row_heights(-(-place // columns))

    def _set_row_heights(self, rows: int) -> None:
        minimum = _MIN_SCROLLING_ROW_HEIGHT if self._scrolls and not self.maximized else _MIN_ROW_HEIGHT
        for row in range(max(rows, self._grid.rowCount())):
            factor = (_FIRST_ROW_FACTOR if row == 0 else 1.0) if row < rows else 0.0
            self._grid.setRowStretch(row, round(10 * factor))
            self._grid.setRowMinimumHeight(row, round(minimum * factor))
        self.setMinimumHeight(round(minimum * (_FIRST_ROW_FACTOR + rows - 1)) + SPACING * max(0, rows - 1))
