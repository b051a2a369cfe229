"""One pyqtgraph plot with the window's axes, pens and marks.

Facts that this file rests on, measured with pyqtgraph 0.13 and 0.14: lines of 2 px cost three to five
times as much as those of 1 px (Qt strokes them in software); a grid costs more than the curves; without
peak downsampling and clipping to the view, a million points take 146 ms instead of 26.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.theme.tokens import Tokens

Look = Literal["line", "faint", "dashed", "area"]
Mark = Literal["best", "checkpoint", "bad"]
Values = NDArray[np.float64]

_FAINT: Final = 95  # of 255
_FEW: Final = 40  # points up to which each gets a dot: a short run should not look empty
_AXIS_WIDTH: Final = 52  # one width, so that the plots above one another line up
_MARKS: Final = {"best": ("star", 13), "checkpoint": ("t1", 8), "bad": ("x", 9)}

pg.setConfigOptions(antialias=False, useNumba=False)


class _Axis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph ships no types
    """Ticks as people write figures: 12,000 and 150k, never 1.2e4 or (x0.001)."""

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:  # noqa: N802 - pyqtgraph's name
        if self.logMode:
            return [tick_text(10.0**value, 0.0) for value in values]
        return [tick_text(value * scale, spacing * scale) for value in values]


def tick_text(value: float, spacing: float) -> str:
    """One tick; `spacing` to its neighbour decides the decimals (0: take two significant digits)."""
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if not spacing:
        return f"{value:.2g}" if size < 1 else f"{value:.3g}"
    decimals = max(0, int(np.ceil(-np.log10(spacing) - 1e-9))) if spacing < 1 else 0
    return f"{value:,.{decimals}f}"


class Canvas(pg.PlotWidget):  # type: ignore[misc]
    """Curves and marks by name. The page sets the x range of all canvases; the y range follows what is seen."""

    moved = Signal(float, float)  # the person has dragged or zoomed to this part of the x axis
    reset_asked = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        axes = {"left": _Axis("left"), "bottom": _Axis("bottom")}
        super().__init__(parent=parent, axisItems=axes)
        self._tokens = tokens
        self._curves: dict[str, tuple[Any, Look, str]] = {}
        self._marks: dict[Mark, tuple[Any, str]] = {}
        plot = self.getPlotItem()
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.setDownsampling(auto=True, mode="peak")
        plot.setClipToView(True)
        plot.getViewBox().setMouseEnabled(x=True, y=False)
        plot.getViewBox().setDefaultPadding(0.04)
        plot.getViewBox().enableAutoRange(x=False, y=True)
        plot.getViewBox().setAutoVisible(y=True)
        plot.getViewBox().sigRangeChangedManually.connect(lambda *_: self.moved.emit(*self.x_range))
        for name, axis in axes.items():
            axis.enableAutoSIPrefix(False)
            axis.setStyle(tickLength=-4, maxTickLevel=0, hideOverlappingLabels=True)
            if name == "left":
                axis.setWidth(_AXIS_WIDTH)
        axes["bottom"].setHeight(20)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.retheme(tokens)

    # --- content -----------------------------------------------------------------------------------

    def add_curve(self, name: str, token: str, look: Look = "line") -> None:
        """A curve whose colour is the theme's `token`."""
        item = pg.PlotDataItem(skipFiniteCheck=False, connect="finite")
        if look == "area":  # down to zero; the areas added later lie in front
            item.setFillLevel(0.0)
        self._curves[name] = (item, look, token)
        self.addItem(item)
        self._style(item, look, token)

    def add_mark(self, kind: Mark, token: str) -> None:
        symbol, size = _MARKS[kind]
        item = pg.ScatterPlotItem(symbol=symbol, size=size, pxMode=True)
        item.setZValue(10)
        self._marks[kind] = (item, token)
        self.addItem(item)
        self._style_mark(item, token)

    def show_curve(self, name: str, x: Values, y: Values) -> None:
        """Replace a curve's points. Arrays may be views of growing buffers: nothing is kept of them."""
        item, look, token = self._curves[name]
        dotted = look == "line" and len(x) <= _FEW
        if dotted:
            known = np.isfinite(y)
            x, y = x[known], y[known]
        item.setData(x, y, symbol="o" if dotted else None, symbolSize=5, symbolPen=None)
        if dotted:
            item.setSymbolBrush(self._colour(token))

    def show_marks(self, kind: Mark, x: Sequence[float], y: Sequence[float]) -> None:
        log = self.getPlotItem().getAxis("left").logMode
        heights = np.log10(np.maximum(y, 1e-12)) if log else np.asarray(y, dtype=float)
        self._marks[kind][0].setData(np.asarray(x, dtype=float), heights)

    def begin_at_zero(self) -> None:
        """Show nothing below zero: for areas, whose height is what counts."""
        self.getPlotItem().getViewBox().setLimits(yMin=0.0)

    def set_log(self, on: bool) -> None:
        self.getPlotItem().setLogMode(x=False, y=on)

    @property
    def x_range(self) -> tuple[float, float]:
        low, high = self.getPlotItem().getViewBox().viewRange()[0]
        return float(low), float(high)

    def show_x(self, low: float, high: float) -> None:
        """Show this part of the x axis. (pyqtgraph's own links shift plots that lie at different places.)"""
        if (low, high) != self.x_range:
            self.getPlotItem().getViewBox().setXRange(low, high, padding=0)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        """With Ctrl: zoom. Without: the page scrolls, as under any other widget."""
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        self.reset_asked.emit()
        event.accept()

    # --- looks ---------------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.setBackground(tokens.surface)
        small = self.font()
        small.setPointSizeF(max(7.0, small.pointSizeF() - 1.5))
        for name in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(name)
            axis.setPen(pg.mkPen(tokens.border))
            axis.setTextPen(pg.mkPen(tokens.muted))
            axis.setStyle(tickFont=small)
        for item, look, token in self._curves.values():
            self._style(item, look, token)
        for item, token in self._marks.values():
            self._style_mark(item, token)

    def _colour(self, token: str, alpha: int = 255) -> QColor:
        colour = QColor(getattr(self._tokens, token))
        colour.setAlpha(alpha)
        return colour

    def _style(self, item: Any, look: Look, token: str) -> None:
        line = Qt.PenStyle.DashLine if look == "dashed" else Qt.PenStyle.SolidLine
        alpha = _FAINT if look == "faint" else 255
        item.setPen(pg.mkPen(self._colour(token, alpha), width=1, style=line))
        if look == "area":
            item.setFillBrush(self._colour(token))

    def _style_mark(self, item: Any, token: str) -> None:
        item.setBrush(self._colour(token))
        item.setPen(pg.mkPen(self._tokens.surface, width=1))
