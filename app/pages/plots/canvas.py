"""One pyqtgraph plot with the window's axes, pens and markers.

Measured with pyqtgraph 0.13 and 0.14: lines of 2 px take three to five times as long as lines of 1 px, because Qt
strokes them in software; a grid takes longer than the curves; downsampling 200,000 points takes 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.core.metrics.metric_table import Array
from app.pages.plots.axes import Axis, style_axis
from app.pages.plots.plot_specs import CurveKey, LineStyle
from app.theme.palette import Palette

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MarkerKind

_PEN_STYLES: Final[dict[LineStyle, Qt.PenStyle]] = {
    "dashed": Qt.PenStyle.DashLine,
    "dotted": Qt.PenStyle.DotLine,
}
_FAINT_ALPHA: Final = 95  # of 255
_MAX_DOTTED_POINTS: Final = 40  # up to this many points, each has a dot, so that a short run does not look empty
_MAX_THICK_POINTS: Final = 500  # up to this many points, thick lines on a high-DPI screen are cheap
_MAX_MARKERS: Final = 200  # of one kind
_AXIS_WIDTH: Final = 52  # constant, so that plots above one another line up
_SYMBOLS: Final[dict[MarkerKind, tuple[str, int]]] = {
    "best": ("star", 13),
    "checkpoint": ("t1", 8),
    "bad_step": ("x", 9),
    "oom_recovery": ("d", 8),
    "resume": ("|", 16),
    "thermal_throttling": ("s", 4),
}
_BUCKETS_PER_PIXEL: Final = 2  # of a downsampled curve; each has a minimum and a maximum
_PADDING: Final = 0.04  # of the height, above and below the curves
_KEY_ZOOM: Final = 1.5
_CROSSHAIR_STEPS: Final = 200  # across the plot

pg.setConfigOptions(antialias=False, useNumba=False)


class Canvas(pg.PlotWidget):  # type: ignore[misc]
    """Curves and markers. The page sets the x range of all canvases; the y range fits the visible points."""

    range_changed = Signal(float, float)  # range of the x axis after a drag or zoom
    reset_requested = Signal()
    cursor_moved = Signal(object)  # x position of the mouse; None: outside the plot
    maximize_requested = Signal()
    escape_pressed = Signal()  # without a crosshair

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        self._axes = {"left": Axis("left"), "bottom": Axis("bottom")}
        super().__init__(parent=parent, axisItems=self._axes)
        self._curves: dict[CurveKey, Any] = {}  # pg.PlotDataItem
        self._markers: dict[MarkerKind, Any] = {}  # pg.ScatterPlotItem
        self._full_range = (0.0, 1.0)  # of the x axis, for keys
        self._crosshair: float | None = None  # position on the x axis
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

    def set_curves(self, curves: Sequence[tuple[CurveKey, Array, Array]]) -> None:
        """Show these curves (x, y), the first in front. Areas are stacked, the first at the bottom."""
        for key in self._curves.keys() - {key for key, _, _ in curves}:
            self.removeItem(self._curves.pop(key))
        below = np.zeros(1)
        for layer, (key, x, y) in enumerate(curves):
            if key not in self._curves:
                self._curves[key] = self._add_curve(key.style == "area")
            if key.style == "area":
                y = below = np.nan_to_num(y) + below
            self._curves[key].setZValue(-layer)
            color = self._color(key.color, _FAINT_ALPHA if key.style == "faint" else 255)
            width = self.devicePixelRatioF() if len(x) <= _MAX_THICK_POINTS else 1.0  # in device pixels
            self._curves[key].setData(
                x,
                y,
                pen=pg.mkPen(color, width=width, style=_PEN_STYLES.get(key.style, Qt.PenStyle.SolidLine)),
                fillBrush=pg.mkBrush(color),
                symbol="o" if key.style == "line" and len(x) <= _MAX_DOTTED_POINTS else None,
                symbolBrush=pg.mkBrush(color),
                symbolSize=5,
                symbolPen=None,
            )

    def _add_curve(self, is_area: bool) -> Any:
        item = pg.PlotDataItem(connect="finite", dynamicRangeLimit=None, autoDownsampleFactor=_BUCKETS_PER_PIXEL)
        self.addItem(item)
        if is_area:  # filled down to zero, so a higher one lies behind
            item.setFillLevel(0.0)
            item.setDownsampling(auto=True, method="mean")  # overrides what `addItem` sets
        return item

    def show_markers(self, kind: MarkerKind, color: str, x: Array, y: Array) -> None:
        """Replace the markers of a kind by those in the visible range, at most 200."""
        if kind not in self._markers:
            symbol, size = _SYMBOLS[kind]
            self._markers[kind] = pg.ScatterPlotItem(symbol=symbol, size=size)
            self._markers[kind].setZValue(10)
            self.addItem(self._markers[kind])
        low, high = self.x_range
        visible = np.flatnonzero((x >= low) & (x <= high))
        visible = visible[:: 1 + visible.size // _MAX_MARKERS]
        heights = np.log10(np.maximum(y[visible], 1e-12)) if self._log else y[visible]
        outline = pg.mkPen(self._color(color if kind == "resume" else "surface"), width=1)
        self._markers[kind].setData(x[visible], heights, brush=self._color(color), pen=outline)

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

    def set_x_range(self, low: float, high: float, full_range: tuple[float, float], *, is_time: bool = False) -> None:
        """Set the x range. pyqtgraph's linked axes would shift plots at different positions."""
        self._full_range = full_range
        self._axes["bottom"].set_is_duration(is_time)
        if (low, high) != self.x_range:
            self._box.setXRange(low, high, padding=0)

    def fit_y(self, *, clip: bool = False, from_zero: bool = False, minimum_top: float | None = None) -> None:
        """Fit the y axis to the visible points, from 0 with `from_zero`, and at least up to `minimum_top`. `clip`:
        ignore points further from the 5th to 95th percentile than 1.5 times that range."""
        visible = [item.getData()[1] for item in self._curves.values()]  # of the visible range, on the log scale
        heights = np.concatenate([np.empty(0), *(y for y in visible if y is not None)])
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

    # --- mouse and keys --------------------------------------------------------------------------------

    def show_crosshair(self, x: float | None, label: str = "") -> None:
        """Show a vertical line at `x` with a label; None hides it."""
        self._crosshair = x
        self._crosshair_line.setVisible(x is not None)
        if x is not None:
            self._crosshair_line.setValue(x)
            self._crosshair_line.label.setFormat(label)
            self._crosshair_line.label.setVisible(bool(label))

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
        key, modifiers = Qt.Key(event.key()), event.modifiers()
        (low, high), (begin, end) = self.x_range, self._full_range
        center = (low + high) / 2 if self._crosshair is None else self._crosshair
        direction = 1 if key == Qt.Key.Key_Right else -1
        match key:
            case Qt.Key.Key_Left | Qt.Key.Key_Right if modifiers & Qt.KeyboardModifier.ControlModifier:
                by = min(max(direction * (high - low) / 10, begin - low), max(0.0, end - high))
                self.range_changed.emit(low + by, high + by)
            case Qt.Key.Key_Left | Qt.Key.Key_Right:
                step = (high - low) / _CROSSHAIR_STEPS * (10 if modifiers & Qt.KeyboardModifier.ShiftModifier else 1)
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
        x_range = max(self._full_range[0], low), min(self._full_range[1], high)
        if x_range == self._full_range:
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
        """Apply a theme; `set_curves` and `show_markers` apply it to what they show."""
        self._palette = palette
        self.setBackground(palette.surface)
        for axis in self._axes.values():
            style_axis(axis, palette, self.font())
        self._crosshair_line.setPen(pg.mkPen(palette.muted))
        self._crosshair_line.label.setColor(palette.text)
        self._crosshair_line.label.fill = pg.mkBrush(palette.window)
        self._crosshair_line.label.border = pg.mkPen(palette.border)

    def _color(self, name: str, alpha: int = 255) -> QColor:
        color = QColor(getattr(self._palette, name))
        color.setAlpha(alpha)
        return color
