"""The plots of a page side by side: two columns, the loss across both; one of them alone when it is enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.theme.tokens import SPACE
from app.views.plots.chart import Chart

_WIDE: Final = "loss"
_MANY: Final = "time"  # its parts are many
_NARROW: Final = 560  # pixels: below, a page that scrolls anyway has one column
_ROW: Final = 100  # pixels at least; the first row has more
_TALL_ROW: Final = 190  # of a page that scrolls
_FIRST: Final = 1.6  # the first row's share of the height


class Board(QWidget):
    """Makes a chart when it is first asked for. As high as there is room, whatever canvases would like."""

    made = Signal(object)  # Chart

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.charts: dict[str, Chart] = {}
        self.shown: list[str] = []  # those of the page, also while one is enlarged
        self.enlarged = ""
        self._scrolls = False
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(SPACE)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)

    def visible(self) -> list[Chart]:
        """Those that can be seen now, at least a part of them."""
        return [chart for chart in self.charts.values() if chart.isVisible() and not chart.visibleRegion().isEmpty()]

    def chart(self, name: str) -> Chart:
        if name not in self.charts:
            self.charts[name] = Chart(name, self, menu=True, below=name == _MANY)
            self.charts[name].hide()
            self.made.emit(self.charts[name])
        return self.charts[name]

    def show_charts(self, names: Sequence[str], *, scrolls: bool) -> None:
        """Show these, in this order; `scrolls`: each as high as is comfortable, rather than all within the page."""
        if (list(names), scrolls) != (self.shown, self._scrolls):
            self.shown, self._scrolls = list(names), scrolls
            self._place()

    def enlarge(self, name: str) -> None:
        """This one alone; "": all again."""
        self.enlarged = name
        self._place()

    def hasHeightForWidth(self) -> bool:  # noqa: N802 - Qt's name
        return False  # the words of empty plots wrap, but the plots do not grow with them

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
        spacing = SPACE * max(0, rows - 1)
        self.setMinimumHeight(round(least * (_FIRST + rows - 1)) + spacing)
