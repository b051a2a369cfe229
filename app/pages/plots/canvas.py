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
from app.pages.plots.zoom_box import ZoomBox
from app.theme.palette import Palette

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MarkerKind

_PEN_STYLES: Final[dict[LineStyle, Qt.PenStyle]] = {
    "dashed": Qt.PenStyle.DashLine,
    "dotted": Qt.PenStyle.DotLine,
}
_FAINT_SHARE: Final = 0.4  # of the color of a curve; the rest is the background
_SELECTION_ALPHA: Final = 60  # of 255
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
_MIN_ZOOM: Final = 1e-6  # of the full range, about the precision of the values
_CROSSHAIR_STEPS: Final = 200  # across the plot
_WHEEL_STEP: Final = 120  # angle of one step of a mouse wheel

pg.setConfigOptions(antialias=False, useNumba=False)


class Canvas(pg.PlotWidget):  # type: ignore[misc]
    """Curves and markers. The page sets the x range of all canvases; the y range fits the visible points, or is set."""

    zoomed = Signal(int, object)  # axis (0: x, 1: y), and its range after a zoom; None: everything
    reset_requested = Signal()
    cursor_moved = Signal(object)  # x position of the mouse; None: outside the plot
    maximize_requested = Signal()
    escape_pressed = Signal()  # without a crosshair

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        self._axes = {"left": Axis("left"), "bottom": Axis("bottom")}
        self._box = ZoomBox(enableMenu=False)
        super().__init__(parent=parent, viewBox=self._box, axisItems=self._axes)
        self._curves: dict[CurveKey, Any] = {}  # pg.PlotDataItem
        self._painted: dict[CurveKey, tuple[object, object]] = {}  # version and style of each curve
        self._markers: dict[MarkerKind, Any] = {}  # pg.ScatterPlotItem
        self._full_ranges = [(0.0, 1.0), (0.0, 1.0)]  # of the x and the y axis
        self._set_ranges = [(0.0, 1.0), (0.0, 1.0)]  # by `_set_range`
        self._crosshair: float | None = None  # position on the x axis
        self._log = False
        plot = self.getPlotItem()
        plot.hideButtons()
        plot.setDownsampling(auto=True, mode="peak")
        plot.setClipToView(True)
        self._crosshair_line = pg.InfiniteLine(label="", labelOpts={"position": 0.08})
        self._crosshair_line.setZValue(20)
        self._crosshair_line.hide()
        self._box.addItem(self._crosshair_line, ignoreBounds=True)
        self._box.enableAutoRange(x=False, y=False)
        self._box.sigRangeChangedManually.connect(self._on_zoomed_by_mouse)
        self._axes["left"].setWidth(_AXIS_WIDTH)
        self._axes["bottom"].setHeight(20)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.retheme(palette)

    # --- content -----------------------------------------------------------------------------------

    def set_curves(self, curves: Sequence[tuple[CurveKey, object, Array, Array]]) -> None:
        """Show these curves (x, y), the first in front. Areas are stacked, the first at the bottom. The second element
        changes with the data: pyqtgraph downsamples each curve that is set again."""
        for key in self._curves.keys() - {key for key, *_ in curves}:
            self.removeItem(self._curves.pop(key))
            del self._painted[key]
        below, stack = np.zeros(1), tuple[object, ...]()
        for layer, (key, version, x, y) in enumerate(curves):
            if key not in self._curves:
                self._curves[key] = self._add_curve(key.style == "area")
            if key.style == "area":
                y = below = np.nan_to_num(y) + below
                version = stack = (*stack, version)
            self._curves[key].setZValue(-layer)
            width = self.devicePixelRatioF() if len(x) <= _MAX_THICK_POINTS else 1.0  # in device pixels
            style = (self._palette, width, len(x) <= _MAX_DOTTED_POINTS)
            old_version, old_style = self._painted.get(key, (None, None))
            if style != old_style:
                self._curves[key].setData(x, y, **self._style_options(key, width, dotted=style[-1]))
            elif version != old_version:
                self._curves[key].setData(x, y)
            self._painted[key] = (version, style)

    def _style_options(self, key: CurveKey, width: float, *, dotted: bool) -> dict[str, Any]:
        color = self._color(key.color)
        if key.style == "faint":  # opaque, because transparent lines add up where they overlap
            color = _mix(color, self._color("surface"), _FAINT_SHARE)
        return {
            "pen": pg.mkPen(color, width=width, style=_PEN_STYLES.get(key.style, Qt.PenStyle.SolidLine)),
            "fillBrush": pg.mkBrush(color),
            "symbol": "o" if key.style == "line" and dotted else None,
            "symbolBrush": pg.mkBrush(color),
            "symbolSize": 5,
            "symbolPen": None,
        }

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
            if not x.size:
                return
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
        self._full_ranges[0] = full_range
        self._axes["bottom"].set_is_duration(is_time)
        self._set_range(0, low, high)

    def set_y_range(
        self,
        zoom: tuple[float, float] | None = None,
        *,
        clip: bool = False,
        from_zero: bool = False,
        minimum_top: float | None = None,
    ) -> None:
        """Set the y range to `zoom`, or fit it to the visible points: from 0 with `from_zero`, and at least up to
        `minimum_top`. `clip`: ignore points further from the 5th to 95th percentile than 1.5 times that range."""
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
        self._full_ranges[1] = (0.0 if from_zero and low == 0.0 else low - padding, high + padding)
        self._set_range(1, *(zoom or self._full_ranges[1]))

    def _set_range(self, axis: int, low: float, high: float) -> None:
        self._set_ranges[axis] = (low, high)
        if (low, high) != (self.x_range, self.y_range)[axis]:
            self._box.setRange(**{("xRange", "yRange")[axis]: (low, high)}, padding=0)

    def _zoom(self, axis: int, low: float, high: float) -> None:
        """Show this part of an axis, moved into what the full or the visible range has."""
        (begin, end), visible, zoom = self._full_ranges[axis], self._set_ranges[axis], None
        size = max(high - low, _MIN_ZOOM * (end - begin))
        if size < (1 - 1e-9) * (end - begin):
            low = min(max(low, min(begin, visible[0])), max(end, visible[1]) - size)
            zoom = low, low + size
        self._set_range(axis, *(zoom or (begin, end)))
        self.zoomed.emit(axis, zoom)

    def _on_zoomed_by_mouse(self) -> None:
        for axis, visible in enumerate((self.x_range, self.y_range)):
            if visible != self._set_ranges[axis]:
                self._zoom(axis, *visible)

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
        """Zoom with Ctrl, pan with Shift, else let the page scroll."""
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self._pan(-event.angleDelta().y() / _WHEEL_STEP)
            event.accept()
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802 - Qt's name
        self.reset_requested.emit()
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        """Move the crosshair (arrows, Home, End), pan (Ctrl and arrows), zoom (with Shift and arrows: the y axis), show
        all, or maximize."""
        key, modifiers = Qt.Key(event.key()), event.modifiers()
        has_shift = bool(modifiers & Qt.KeyboardModifier.ShiftModifier)
        (low, high), end = self.x_range, self._full_ranges[0][1]
        center = (low + high) / 2 if self._crosshair is None else self._crosshair
        direction = 1 if key == Qt.Key.Key_Right else -1
        match key:
            case Qt.Key.Key_Left | Qt.Key.Key_Right if modifiers & Qt.KeyboardModifier.ControlModifier:
                self._pan(direction)
            case Qt.Key.Key_Left | Qt.Key.Key_Right:
                step = (high - low) / _CROSSHAIR_STEPS * (10 if has_shift else 1)
                self.cursor_moved.emit(min(max(center + direction * step, low), high))
            case Qt.Key.Key_Up | Qt.Key.Key_Down if has_shift:
                self._scale(1, sum(self.y_range) / 2, _KEY_ZOOM if key == Qt.Key.Key_Down else 1 / _KEY_ZOOM)
            case Qt.Key.Key_Home | Qt.Key.Key_End:
                self.cursor_moved.emit(low if key == Qt.Key.Key_Home else min(high, end))
            case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                self._scale(0, center, 1 / _KEY_ZOOM)
            case Qt.Key.Key_Minus:
                self._scale(0, center, _KEY_ZOOM)
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

    def _pan(self, steps: float) -> None:
        """Move the visible part of the x axis by tenths of it."""
        low, high = self.x_range
        by = steps * (high - low) / 10
        self._zoom(0, low + by, high + by)

    def _scale(self, axis: int, center: float, factor: float) -> None:
        low, high = (center + factor * (edge - center) for edge in (self.x_range, self.y_range)[axis])
        self._zoom(axis, low, high)

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
        self._box.rbScaleBox.setPen(pg.mkPen(palette.accent))
        self._box.rbScaleBox.setBrush(self._color("accent", _SELECTION_ALPHA))
        self._crosshair_line.setPen(pg.mkPen(palette.muted))
        self._crosshair_line.label.setColor(palette.text)
        self._crosshair_line.label.fill = pg.mkBrush(palette.window)
        self._crosshair_line.label.border = pg.mkPen(palette.border)

    def _color(self, name: str, alpha: int = 255) -> QColor:
        color = QColor(getattr(self._palette, name))
        color.setAlpha(alpha)
        return color


def _mix(color: QColor, background: QColor, share: float) -> QColor:
    front, back = ((one.red(), one.green(), one.blue()) for one in (color, background))
    return QColor(*(round(share * a + (1 - share) * b) for a, b in zip(front, back, strict=True)))
