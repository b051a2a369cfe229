"""One pyqtgraph plot with the window's axes, pens and markers.

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

from app.pages.plots.axes import Axis, style_axis
from app.pages.plots.plot_specs import CurveKey, LineStyle
from app.theme.palette import Palette

MarkerKind = Literal["best", "checkpoint", "bad", "memory", "hot"]
Values = NDArray[Any]

_PEN_STYLES: Final[dict[LineStyle, Qt.PenStyle]] = {
    "dashed": Qt.PenStyle.DashLine,
    "dotted": Qt.PenStyle.DotLine,
}
_FAINT_ALPHA: Final = 95  # of 255
_MAX_DOTTED_POINTS: Final = 40  # up to this many points, each has a dot, so that a short run does not look empty
_MAX_THICK_POINTS: Final = 500  # up to this many points, thick lines on a high-DPI screen are cheap
_AXIS_WIDTH: Final = 52  # constant, so that plots above one another line up
_SYMBOLS: Final[dict[MarkerKind, tuple[str, int]]] = {
    "best": ("star", 13),
    "checkpoint": ("t1", 8),
    "bad": ("x", 9),
    "memory": ("d", 8),
    "hot": ("s", 4),
}
_BUCKETS_PER_PIXEL: Final = 2  # of a downsampled curve; each has a minimum and a maximum
_PADDING: Final = 0.04  # of the height, above and below the curves
_KEY_ZOOM: Final = 1.5
_CROSSHAIR_STEPS: Final = 200  # across the plot

pg.setConfigOptions(antialias=False, useNumba=False)


class Canvas(pg.PlotWidget):  # type: ignore[misc]
    """Curves and markers by name. The page sets the x range of all canvases; the y range fits the visible points."""

    range_changed = Signal(float, float)  # range of the x axis after a drag or zoom
    reset_requested = Signal()
    cursor_moved = Signal(object)  # x position of the mouse; None: outside the plot
    maximize_requested = Signal()
    escape_pressed = Signal()  # without a crosshair

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        self._axes = {"left": Axis("left"), "bottom": Axis("bottom")}
        super().__init__(parent=parent, axisItems=self._axes)
        self._palette = palette
        self._curves: dict[CurveKey, Any] = {}  # pg.PlotDataItem
        self.full_range = (0.0, 1.0)  # of the x axis, for keys
        self._markers: dict[MarkerKind, tuple[Any, str]] = {}  # pg.ScatterPlotItem, color
        self._lines: list[Any] = []  # pg.InfiniteLine
        self._crosshair: tuple[float, str] | None = None  # position on the x axis, and the label
        self._log = False
        plot = self.getPlotItem()
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.setDownsampling(auto=True, mode="peak")
        plot.setClipToView(True)
        self._box = plot.getViewBox()
        self._crosshair_line = pg.InfiniteLine(label="", labelOpts={"position": 0.08})
        self._crosshair_line.setZValue(20)
        self._crosshair_line.hide()
        self._box.addItem(self._crosshair_line, ignoreBounds=True)
        self._box.setMouseEnabled(x=True, y=False)
        self._box.enableAutoRange(x=False, y=False)
        self._box.sigRangeChangedManually.connect(lambda *_: self.range_changed.emit(*self.x_range))
        self._axes["left"].setWidth(_AXIS_WIDTH)
        self._axes["bottom"].setHeight(20)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.retheme(palette)

    # --- content -----------------------------------------------------------------------------------

    def set_curves(self, keys: Sequence[CurveKey]) -> None:
        """Add and remove curves so that there are these, the first in front."""
        for key in [key for key in self._curves if key not in keys]:
            self.removeItem(self._curves.pop(key))
        for layer, key in enumerate(keys):
            if key not in self._curves:
                self._curves[key] = self._add_curve(key)
            self._curves[key].setZValue(-layer)

    def _add_curve(self, key: CurveKey) -> Any:
        item = pg.PlotDataItem(connect="finite", dynamicRangeLimit=None, autoDownsampleFactor=_BUCKETS_PER_PIXEL)
        self.addItem(item)
        if key.style == "area":  # filled down to zero, so a higher one lies behind
            item.setFillLevel(0.0)
            item.setDownsampling(auto=True, method="mean")  # overrides what `addItem` sets
        self._style_curve(item, key)
        return item

    def set_points(self, key: CurveKey, x: Values, y: Values) -> None:
        """Replace a curve's points."""
        item = self._curves[key]
        dotted = key.style == "line" and len(x) <= _MAX_DOTTED_POINTS
        if dotted:
            known = np.isfinite(y)
            x, y = x[known], y[known]
        width = self.devicePixelRatioF() if len(x) <= _MAX_THICK_POINTS else 1.0  # in device pixels
        if item.opts["pen"].widthF() != width:
            self._style_curve(item, key, width)
        item.setData(x, y, symbol="o" if dotted else None, symbolSize=5, symbolPen=None)
        if dotted:
            item.setSymbolBrush(self._color(key.color))

    def show_markers(self, kind: MarkerKind, color: str, x: Sequence[float], y: Sequence[float]) -> None:
        """Replace the markers of a kind."""
        if kind not in self._markers:
            if not len(x):
                return
            symbol, size = _SYMBOLS[kind]
            item = pg.ScatterPlotItem(symbol=symbol, size=size, pxMode=True)
            item.setZValue(10)
            self.addItem(item)
            self._markers[kind] = (item, "")
        item, current_color = self._markers[kind]
        if current_color != color:
            self._markers[kind] = (item, color)
            self._style_marker(item, color)
        heights = np.log10(np.maximum(y, 1e-12)) if self._log else np.asarray(y, dtype=float)
        item.setData(np.asarray(x, dtype=float), heights)

    def show_lines(self, x: Sequence[float]) -> None:
        """Replace the faint vertical lines."""
        if list(x) == [line.value() for line in self._lines]:
            return
        for line in self._lines:
            self._box.removeItem(line)
        self._lines = [pg.InfiniteLine(position, pen=self._line_pen()) for position in x]
        for line in self._lines:
            self._box.addItem(line, ignoreBounds=True)

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

    def set_x_range(self, low: float, high: float, *, is_time: bool = False) -> None:
        """Set the x range. pyqtgraph's linked axes would shift plots at different positions."""
        self._axes["bottom"].set_time(is_time)
        if (low, high) != self.x_range:
            self._box.setXRange(low, high, padding=0)

    def fit_y(self, *, clip: bool = False, from_zero: bool = False, minimum_top: float | None = None) -> None:
        """Fit the y axis to the visible points, from 0 with `from_zero`, and at least up to `minimum_top`. `clip`:
        ignore points further from the 5th to 95th percentile than 1.5 times that range."""
        visible = [item.getData()[1] for item in self._curves.values()]  # of the visible range, on the log scale
        heights = np.concatenate([np.asarray(y, dtype=float) for y in visible if y is not None] or [np.empty(0)])
        heights = heights[np.isfinite(heights)]
        if not heights.size:
            return
        low, high = float(heights.min()), float(heights.max())
        if clip:
            below, above = (float(edge) for edge in np.percentile(heights, (5, 95)))
            low, high = max(low, below - 1.5 * (above - below)), min(high, above + 1.5 * (above - below))
        if minimum_top is not None:
            high = max(high, minimum_top)
        if from_zero and not self._log:
            low = min(low, 0.0)
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # center a flat line
            around = 0.05 * abs(high) or 0.5
            low, high = low - around, high + around
        padding = _PADDING * (high - low)
        y_range = (0.0 if from_zero and low == 0.0 else low - padding, high + padding)
        if y_range != self.y_range:
            self._box.setYRange(*y_range, padding=0)

    # --- crosshair -----------------------------------------------------------------------------------

    def show_crosshair(self, x: float | None, label: str = "") -> None:
        """Show a vertical line at `x` with a label; None hides it."""
        crosshair = None if x is None else (x, label)
        if crosshair == self._crosshair:
            return
        self._crosshair = crosshair
        self._crosshair_line.setVisible(x is not None)
        if x is not None:
            self._crosshair_line.setValue(x)
            self._crosshair_line.label.setFormat(label)
            self._crosshair_line.label.setVisible(bool(label))

    # --- mouse and keys --------------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        super().mouseMoveEvent(event)
        if event.buttons() == Qt.MouseButton.NoButton:
            position = self.mapToScene(event.position().toPoint())
            inside = self._box.sceneBoundingRect().contains(position)
            self.cursor_moved.emit(float(self._box.mapSceneToView(position).x()) if inside else None)

    def leaveEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        super().leaveEvent(event)
        self.cursor_moved.emit(None)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        """Zoom with Ctrl, else let the page scroll."""
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        self.reset_requested.emit()
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        """Move the crosshair (arrows, Home, End), pan (Ctrl and arrows), zoom, show all, or maximize."""
        key, shift, control = (
            Qt.Key(event.key()),
            Qt.KeyboardModifier.ShiftModifier,
            Qt.KeyboardModifier.ControlModifier,
        )
        (low, high), (begin, end) = self.x_range, self.full_range
        center = (low + high) / 2 if self._crosshair is None else self._crosshair[0]
        direction = 1 if key == Qt.Key.Key_Right else -1
        match key:
            case Qt.Key.Key_Left | Qt.Key.Key_Right if event.modifiers() & control:
                by = min(max(direction * (high - low) / 10, begin - low), max(0.0, end - high))
                self.range_changed.emit(low + by, high + by)
            case Qt.Key.Key_Left | Qt.Key.Key_Right:
                step = (high - low) / _CROSSHAIR_STEPS * (10 if event.modifiers() & shift else 1)
                self.cursor_moved.emit(min(max(center + direction * step, low), high))
            case Qt.Key.Key_Home | Qt.Key.Key_End:
                self.cursor_moved.emit(low if key == Qt.Key.Key_Home else min(high, end))
            case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                self._zoom(center, 1 / _KEY_ZOOM)
            case Qt.Key.Key_Minus:
                self._zoom(center, _KEY_ZOOM)
            case Qt.Key.Key_0:
                self.reset_requested.emit()
            case Qt.Key.Key_Return | Qt.Key.Key_Enter:
                self.maximize_requested.emit()
            case Qt.Key.Key_Escape if self._crosshair is not None:
                self.cursor_moved.emit(None)
            case Qt.Key.Key_Escape:
                self.escape_pressed.emit()
            case _:
                event.ignore()  # up and down scroll the page

    def _zoom(self, center: float, factor: float) -> None:
        """Scale the visible range within the full range."""
        low, high = (center + factor * (edge - center) for edge in self.x_range)
        x_range = max(self.full_range[0], low), min(self.full_range[1], high)
        if x_range == self.full_range:
            self.reset_requested.emit()
        else:
            self.range_changed.emit(*x_range)

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusInEvent(event)
        by_key = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason, Qt.FocusReason.ShortcutFocusReason)
        self._box.setBorder(pg.mkPen(self._palette.accent) if event.reason() in by_key else None)

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusOutEvent(event)
        self._box.setBorder(None)

    # --- theme ---------------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.setBackground(palette.surface)
        for axis in self._axes.values():
            style_axis(axis, palette, self.font())
        for line in self._lines:
            line.setPen(self._line_pen())
        self._crosshair_line.setPen(pg.mkPen(palette.muted))
        self._crosshair_line.label.setColor(palette.text)
        self._crosshair_line.label.fill = pg.mkBrush(palette.window)
        self._crosshair_line.label.border = pg.mkPen(palette.border)
        for key, item in self._curves.items():
            self._style_curve(item, key, item.opts["pen"].widthF())
        for item, color in self._markers.values():
            self._style_marker(item, color)

    def _color(self, name: str, alpha: int = 255) -> QColor:
        color = QColor(getattr(self._palette, name))
        color.setAlpha(alpha)
        return color

    def _line_pen(self) -> Any:
        return pg.mkPen(self._color("muted", 130), width=1, style=Qt.PenStyle.DotLine)

    def _style_curve(self, item: Any, key: CurveKey, width: float = 1.0) -> None:
        color = self._color(key.color, _FAINT_ALPHA if key.style == "faint" else 255)
        item.setPen(pg.mkPen(color, width=width, style=_PEN_STYLES.get(key.style, Qt.PenStyle.SolidLine)))
        if key.style == "area":
            item.setFillBrush(color)

    def _style_marker(self, item: Any, color: str) -> None:
        item.setBrush(self._color(color))
        item.setPen(pg.mkPen(self._palette.surface, width=1))
