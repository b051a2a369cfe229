"""One pyqtgraph plot with the window's axes, pens and marks.

Measured with pyqtgraph 0.13 and 0.14: lines of 2 px take three to five times as long as lines of 1 px, because Qt
strokes them in software; a grid takes longer than the curves; downsampling 200,000 points takes 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.pages.plots.axes import Axis
from app.theme.palette import Palette

Look = Literal["line", "faint", "dashed", "dotted", "area"]
_LINES: Final[dict[Look, Qt.PenStyle]] = {"dashed": Qt.PenStyle.DashLine, "dotted": Qt.PenStyle.DotLine}
Mark = Literal["best", "checkpoint", "bad", "memory", "hot"]
Values = NDArray[Any]

_FAINT: Final = 95  # of 255
_FEW: Final = 40  # up to this many points, each has a dot, so that a short run does not look empty
_SPARSE: Final = 500  # up to this many points, thick lines on a high-DPI screen are cheap
_AXIS_WIDTH: Final = 52  # constant, so that plots above one another line up
_MARKS: Final = {"best": ("star", 13), "checkpoint": ("t1", 8), "bad": ("x", 9), "memory": ("d", 8), "hot": ("s", 4)}
_BUCKETS_PER_PIXEL: Final = 2  # of a downsampled curve; each has a minimum and a maximum
_PADDING: Final = 0.04  # of the height, above and below the curves
_KEYS: Final = {
    Qt.Key.Key_Left: "left",
    Qt.Key.Key_Right: "right",
    Qt.Key.Key_Home: "begin",
    Qt.Key.Key_End: "end",
    Qt.Key.Key_Plus: "in",
    Qt.Key.Key_Equal: "in",
    Qt.Key.Key_Minus: "out",
    Qt.Key.Key_0: "all",
    Qt.Key.Key_Escape: "escape",
    Qt.Key.Key_Return: "maximise",
    Qt.Key.Key_Enter: "maximise",
}
_WITH_SHIFT: Final = {"left": "far_left", "right": "far_right"}
_WITH_CONTROL: Final = {"left": "pan_left", "right": "pan_right"}

pg.setConfigOptions(antialias=False, useNumba=False)


class Canvas(pg.PlotWidget):  # type: ignore[misc]
    """Curves and marks by name. The page sets the x range of all canvases; the y range fits the visible points."""

    moved = Signal(float, float)  # range of the x axis after a drag or zoom
    reset_asked = Signal()
    pointed = Signal(object)  # x position of the mouse; None: outside the plot
    keyed = Signal(str)  # a key action: see _KEYS, _WITH_SHIFT, _WITH_CONTROL

    def __init__(self, tokens: Palette, parent: QWidget | None = None) -> None:
        self._axes = {"left": Axis("left"), "bottom": Axis("bottom")}
        super().__init__(parent=parent, axisItems=self._axes)
        self._tokens = tokens
        self._curves: dict[str, tuple[Any, Look, str]] = {}
        self.content: object = None  # identifies the data of all curves, to skip unchanged data
        self._marks: dict[Mark, tuple[Any, str]] = {}
        self._lines: list[Any] = []  # pg.InfiniteLine
        self._cross: tuple[float, str] | None = None  # position on the x axis, and the label
        self._log = False
        plot = self.getPlotItem()
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.setDownsampling(auto=True, mode="peak")
        plot.setClipToView(True)
        self._box = plot.getViewBox()
        self._cross_line = pg.InfiniteLine(label="", labelOpts={"position": 0.08})
        self._cross_line.setZValue(20)
        self._cross_line.hide()
        self._box.addItem(self._cross_line, ignoreBounds=True)
        self._box.setMouseEnabled(x=True, y=False)
        self._box.enableAutoRange(x=False, y=False)
        self._box.sigRangeChangedManually.connect(lambda *_: self.moved.emit(*self.x_range))
        for name, axis in self._axes.items():
            axis.enableAutoSIPrefix(False)
            axis.setStyle(tickLength=-4, maxTickLevel=0, hideOverlappingLabels=True)
            if name == "left":
                axis.setWidth(_AXIS_WIDTH)
        self._axes["bottom"].setHeight(20)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.retheme(tokens)

    # --- content -----------------------------------------------------------------------------------

    def put_curve(self, name: str, token: str, look: Look = "line", layer: int = 0) -> None:
        """Add or restyle a curve in the palette's colour `token`. The lowest layer is in front."""
        if name not in self._curves:
            item = pg.PlotDataItem(connect="finite", dynamicRangeLimit=None, autoDownsampleFactor=_BUCKETS_PER_PIXEL)
            item.setZValue(-layer)
            self.addItem(item)
            if look == "area":  # filled down to zero, so a higher one lies behind
                item.setFillLevel(0.0)
                item.setDownsampling(auto=True, method="mean")  # overrides what `addItem` sets
        elif self._curves[name][1:] == (look, token):
            return
        else:
            item = self._curves[name][0]
        self._curves[name] = (item, look, token)
        self._style(item, look, token)

    def keep_curves(self, names: Sequence[str]) -> None:
        """Remove all other curves."""
        for name in [name for name in self._curves if name not in names]:
            self.removeItem(self._curves.pop(name)[0])

    def show_curve(self, name: str, x: Values, y: Values) -> None:
        """Replace a curve's points."""
        item, look, token = self._curves[name]
        dotted = look == "line" and len(x) <= _FEW
        if dotted:
            known = np.isfinite(y)
            x, y = x[known], y[known]
        width = self.devicePixelRatioF() if len(x) <= _SPARSE else 1.0  # in device pixels
        if item.opts["pen"].widthF() != width:
            self._style(item, look, token, width)
        item.setData(x, y, symbol="o" if dotted else None, symbolSize=5, symbolPen=None)
        if dotted:
            item.setSymbolBrush(self._colour(token))

    def show_marks(self, kind: Mark, token: str, x: Sequence[float], y: Sequence[float]) -> None:
        """Replace the marks of a kind."""
        if kind not in self._marks:
            if not len(x):
                return
            symbol, size = _MARKS[kind]
            item = pg.ScatterPlotItem(symbol=symbol, size=size, pxMode=True)
            item.setZValue(10)
            self.addItem(item)
            self._marks[kind] = (item, "")
        item, known = self._marks[kind]
        if known != token:
            self._marks[kind] = (item, token)
            self._style_mark(item, token)
        heights = np.log10(np.maximum(y, 1e-12)) if self._log else np.asarray(y, dtype=float)
        item.setData(np.asarray(x, dtype=float), heights)

    def show_lines(self, x: Sequence[float]) -> None:
        """Replace the faint vertical lines."""
        if list(x) == [line.value() for line in self._lines]:
            return
        for line in self._lines:
            self._box.removeItem(line)
        self._lines = [pg.InfiniteLine(place) for place in x]
        for line in self._lines:
            line.setPen(self._line_pen())
            self._box.addItem(line, ignoreBounds=True)

    def _line_pen(self) -> Any:
        return pg.mkPen(self._colour("muted", 130), width=1, style=Qt.PenStyle.DotLine)

    def set_log(self, on: bool) -> None:
        self._log = on
        self.getPlotItem().setLogMode(x=False, y=on)

    # --- visible range ------------------------------------------------------------------------------

    @property
    def x_range(self) -> tuple[float, float]:
        low, high = self._box.viewRange()[0]
        return float(low), float(high)

    @property
    def y_range(self) -> tuple[float, float]:
        low, high = self._box.viewRange()[1]
        return float(low), float(high)

    def show_x(self, low: float, high: float, *, of_time: bool = False) -> None:
        """Set the x range. pyqtgraph's linked axes would shift plots at different positions."""
        self._axes["bottom"].show_time(of_time)
        if (low, high) != self.x_range:
            self._box.setXRange(low, high, padding=0)

    def fit_y(self, *, clip: bool = False, zero: bool = False, least: float | None = None) -> None:
        """Fit the y axis to the visible points, from 0 with `zero`, and at least up to `least`. `clip`: ignore points
        further from the 5th to 95th percentile than 1.5 times that range."""
        shown = [item.getData()[1] for item, _, _ in self._curves.values()]  # of the visible range, on the log scale
        heights = np.concatenate([np.asarray(y, dtype=float) for y in shown if y is not None] or [np.empty(0)])
        heights = heights[np.isfinite(heights)]
        if not heights.size:
            return
        low, high = float(heights.min()), float(heights.max())
        if clip:
            below, above = (float(edge) for edge in np.percentile(heights, (5, 95)))
            low, high = max(low, below - 1.5 * (above - below)), min(high, above + 1.5 * (above - below))
        if least is not None:
            high = max(high, least)
        if zero and not self._log:
            low = min(low, 0.0)
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # center a flat line
            around = 0.05 * abs(high) or 0.5
            low, high = low - around, high + around
        room = _PADDING * (high - low)
        wanted = (0.0 if zero and low == 0.0 else low - room, high + room)
        if wanted != self.y_range:
            self._box.setYRange(*wanted, padding=0)

    # --- crosshair -----------------------------------------------------------------------------------

    def show_cross(self, x: float | None, words: str = "") -> None:
        """Show a vertical line at `x` with `words` beside it; None hides it."""
        wanted = None if x is None else (x, words)
        if wanted == self._cross:
            return
        self._cross = wanted
        self._cross_line.setVisible(x is not None)
        if x is not None:
            self._cross_line.setValue(x)
            self._cross_line.label.setFormat(words)
            self._cross_line.label.setVisible(bool(words))

    # --- mouse and keys --------------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        super().mouseMoveEvent(event)
        if event.buttons() == Qt.MouseButton.NoButton:
            place = self.mapToScene(event.position().toPoint())
            inside = self._box.sceneBoundingRect().contains(place)
            self.pointed.emit(float(self._box.mapSceneToView(place).x()) if inside else None)

    def leaveEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        super().leaveEvent(event)
        self.pointed.emit(None)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        """Zoom with Ctrl, else let the page scroll."""
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        self.reset_asked.emit()
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        meaning = _KEYS.get(Qt.Key(event.key()))
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            meaning = _WITH_CONTROL.get(meaning or "")
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            meaning = _WITH_SHIFT.get(meaning or "", meaning)
        if meaning is None:
            event.ignore()  # up and down scroll the page
            return
        self.keyed.emit(meaning)
        event.accept()

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusInEvent(event)
        by_key = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason, Qt.FocusReason.ShortcutFocusReason)
        self._box.setBorder(pg.mkPen(self._tokens.accent) if event.reason() in by_key else None)

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusOutEvent(event)
        self._box.setBorder(None)

    # --- looks ---------------------------------------------------------------------------------------

    def retheme(self, tokens: Palette) -> None:
        self._tokens = tokens
        self.setBackground(tokens.surface)
        small = self.font()
        small.setPointSizeF(max(7.0, small.pointSizeF() - 1.5))
        for axis in self._axes.values():
            axis.setPen(pg.mkPen(tokens.border))
            axis.setTextPen(pg.mkPen(tokens.muted))
            axis.setStyle(tickFont=small)
        for line in self._lines:
            line.setPen(self._line_pen())
        self._cross_line.setPen(pg.mkPen(tokens.muted))
        self._cross_line.label.setColor(tokens.text)
        self._cross_line.label.fill = pg.mkBrush(tokens.window)
        self._cross_line.label.border = pg.mkPen(tokens.border)
        for item, look, token in self._curves.values():
            self._style(item, look, token, item.opts["pen"].widthF())
        for item, token in self._marks.values():
            self._style_mark(item, token)

    def _colour(self, token: str, alpha: int = 255) -> QColor:
        colour = QColor(getattr(self._tokens, token))
        colour.setAlpha(alpha)
        return colour

    def _style(self, item: Any, look: Look, token: str, width: float = 1.0) -> None:
        line = _LINES.get(look, Qt.PenStyle.SolidLine)
        alpha = _FAINT if look == "faint" else 255
        item.setPen(pg.mkPen(self._colour(token, alpha), width=width, style=line))
        if look == "area":
            item.setFillBrush(self._colour(token))

    def _style_mark(self, item: Any, token: str) -> None:
        item.setBrush(self._colour(token))
        item.setPen(pg.mkPen(self._tokens.surface, width=1))
