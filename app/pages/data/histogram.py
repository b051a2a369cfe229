"""Histogram of document lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QMouseEvent, QWheelEvent

from app.pages.plots.axes import style_axis
from app.theme.palette import Palette
from app.widgets.formatting import format_large_number
from trainer_core.protocol import LengthBin

_LABEL_WIDTH: Final = 54  # pixels
_MAX_LABELS: Final = 6


class Histogram(pg.PlotWidget):  # type: ignore[misc]
    """Bars over bins of lengths, and a line at the sequence length. Without pan and zoom."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        plot = self.getPlotItem()
        self._axes = [plot.getAxis(side) for side in ("left", "bottom")]
        self._within, self._over = pg.BarGraphItem(x=[], height=[], width=1), pg.BarGraphItem(x=[], height=[], width=1)
        self._line = pg.InfiniteLine(angle=90, movable=False)
        for item in (self._within, self._over, self._line):
            self.addItem(item)
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.getViewBox().setMouseEnabled(x=False, y=False)
        plot.layout.setContentsMargins(1, 1, _LABEL_WIDTH // 2, 1)  # half of the last label
        left, bottom = self._axes
        left.setWidth(_LABEL_WIDTH)
        bottom.setHeight(20)
        bottom.setStyle(hideOverlappingLabels=_LABEL_WIDTH // 2)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.retheme(palette)

    def show_bins(self, bins: Sequence[LengthBin], limit: int, *, cut: bool) -> None:
        """Display bins. `cut`: documents over `limit` tokens are truncated, and have the second color."""
        edges = [one.start for one in bins] + [one.stop for one in bins[-1:]]
        places = np.arange(len(bins)) + 0.5
        heights = np.array([one.documents for one in bins], dtype=float)
        over = np.array([cut and one.start >= limit for one in bins], dtype=bool)
        self._within.setOpts(x=places[~over], height=heights[~over], width=0.92)
        self._over.setOpts(x=places[over], height=heights[over], width=0.92)
        place = position(edges, limit)
        self._line.setVisible(place is not None)
        self._line.setValue(place or 0.0)
        highest = int(heights.max(initial=1.0))
        view = self.getPlotItem().getViewBox()
        view.setXRange(0, max(1, len(bins)), padding=0.01)
        view.setYRange(0, 1.05 * highest, padding=0)
        every, last = -(-len(edges) // _MAX_LABELS), len(edges) - 1
        labelled = [place for place in range(0, last, every) if place == 0 or place <= last - every] + [last]
        left, bottom = self._axes
        bottom.setTicks([[(place, format_large_number(edges[place])) for place in labelled if bins]])
        left.setTicks([[(count, format_large_number(count)) for count in sorted({0, highest // 2, highest})]])

    def retheme(self, palette: Palette) -> None:
        self.setBackground(palette.surface)
        for axis in self._axes:
            style_axis(axis, palette, self.font())
        for bars, color in ((self._within, palette.curve_a), (self._over, palette.curve_b)):
            bars.setOpts(brush=QColor(color), pen=pg.mkPen(None))
        self._line.setPen(pg.mkPen(palette.text, width=1, style=Qt.PenStyle.DashLine))

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        event.ignore()  # the page scrolls

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        event.ignore()


def position(edges: Sequence[int], value: int) -> float | None:
    """Return the x position of a length, where edges have a distance of 1, or None outside of the bins."""
    if not edges or not edges[0] <= value <= edges[-1]:
        return None
    return float(np.interp(value, edges, np.arange(len(edges))))
