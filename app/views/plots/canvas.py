"""One pyqtgraph plot with the window's axes, pens and marks.

Facts that this file rests on, measured with pyqtgraph 0.13 and 0.14: lines of 2 px cost three to five
times as much as those of 1 px (Qt strokes them in software); a grid costs more than the curves; its own
downsampling looks through all points at every frame (26 ms for a million), so curves come thinned
(`app.state.measurements.curves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.theme.tokens import Tokens
from app.views.plots.axes import Axis
from app.views.plots.legend import paint_beads

Look = Literal["line", "faint", "dashed", "dotted", "area", "beaded"]
_LINES: Final[dict[Look, Qt.PenStyle]] = {"dashed": Qt.PenStyle.DashLine, "dotted": Qt.PenStyle.DotLine}
Mark = Literal["best", "checkpoint", "bad", "memory", "hot"]
Values = NDArray[Any]

_FAINT: Final = 95  # of 255
_FEW: Final = 40  # points up to which each gets a dot: a short run should not look empty
_SPARSE: Final = 500  # points up to which a curve is as thick on a fine screen, at no cost that one could see
_AXIS_WIDTH: Final = 52  # one width, so that the plots above one another line up
_MARKS: Final = {"best": ("star", 13), "checkpoint": ("t1", 8), "bad": ("x", 9), "memory": ("d", 8), "hot": ("s", 4)}
_GOLDEN: Final = 0.618  # multiples of it fall far apart
_BEADS: Final = 6  # on a curve: enough to follow it by, and few enough not to hide the others
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
    """Curves and marks by name. The page sets the x range of all canvases; the y range follows what is seen."""

    moved = Signal(float, float)  # the person has dragged or zoomed to this part of the x axis
    reset_asked = Signal()
    pointed = Signal(object)  # the mouse is over this place of the x axis; None: no longer over the plot
    keyed = Signal(str)  # a key with a meaning: see _KEYS and what Shift and Ctrl make of them

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        self._axes = {"left": Axis("left"), "bottom": Axis("bottom")}
        super().__init__(parent=parent, axisItems=self._axes)
        self._tokens = tokens
        self._curves: dict[str, tuple[Any, Look, str]] = {}
        self._heights: dict[str, Values] = {}  # what each curve shows now
        self._beads: dict[str, tuple[Values, Values]] = {}
        self._marks: dict[Mark, tuple[Any, str]] = {}
        self._lines: Values = np.empty(0)  # faint vertical ones
        self._cross: tuple[float, str] | None = None  # place on the x axis, and the words below it
        self._tabbed = False  # the keyboard came here
        self._log = False
        plot = self.getPlotItem()
        plot.setMenuEnabled(False)
        plot.hideButtons()
        self._box = plot.getViewBox()
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
        """A curve whose colour is the theme's `token`; one that is there gets these looks. The lowest layer lies in
        front."""
        if name not in self._curves:
            item = pg.PlotDataItem(skipFiniteCheck=False, connect="finite")
            if look == "area":  # down to zero: a higher one must lie behind
                item.setFillLevel(0.0)
            item.setZValue(-layer)
            self.addItem(item)
        elif self._curves[name][1:] == (look, token):
            return
        else:
            item = self._curves[name][0]
        self._curves[name] = (item, look, token)
        self._style(item, look, token)

    def keep_curves(self, names: Sequence[str]) -> None:
        """Take away all curves but these."""
        for name in [name for name in self._curves if name not in names]:
            self.removeItem(self._curves.pop(name)[0])
            self._heights.pop(name, None)
            self._beads.pop(name, None)

    def show_curve(self, name: str, x: Values, y: Values) -> None:
        """Replace a curve's points. Arrays may be views of growing buffers: nothing is kept of them."""
        item, look, token = self._curves[name]
        dotted = look == "line" and len(x) <= _FEW
        if dotted:
            known = np.isfinite(y)
            x, y = x[known], y[known]
        width = self.devicePixelRatioF() if len(x) <= _SPARSE else 1.0  # Qt counts pixels of the screen
        if item.opts["pen"].widthF() != width:
            self._style(item, look, token, width)
        item.setData(x, y, symbol="o" if dotted else None, symbolSize=5, symbolPen=None)
        if dotted:
            item.setSymbolBrush(self._colour(token))
        self._heights[name] = y
        if look == "beaded":
            self._beads[name] = self._bead(x, y, layer=-item.zValue())

    def _bead(self, x: Values, y: Values, layer: float) -> tuple[Values, Values]:
        """Some points of a curve, at places of the picture that stay; those of two curves are not below one another."""
        known = np.flatnonzero(np.isfinite(y))
        low, high = self.x_range
        shares = (np.arange(_BEADS) + layer * _GOLDEN % 1.0) / _BEADS
        rows = np.searchsorted(x[known], low + shares * (high - low))
        rows = known[rows[rows < known.size]]
        return x[rows], y[rows]

    def show_marks(self, kind: Mark, token: str, x: Sequence[float], y: Sequence[float]) -> None:
        """Replace the marks of a kind; their item is made when there are any."""
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
        """Faint vertical lines at these places."""
        places = np.asarray(x, dtype=float)
        if not np.array_equal(places, self._lines):
            self._lines = places
            self.viewport().update()

    def set_log(self, on: bool) -> None:
        self._log = on
        self.getPlotItem().setLogMode(x=False, y=on)

    # --- what is seen ------------------------------------------------------------------------------

    @property
    def x_range(self) -> tuple[float, float]:
        low, high = self._box.viewRange()[0]
        return float(low), float(high)

    @property
    def y_range(self) -> tuple[float, float]:
        low, high = self._box.viewRange()[1]
        return float(low), float(high)

    def show_x(self, low: float, high: float, *, of_time: bool = False) -> None:
        """Show this part of the x axis. (pyqtgraph's own links shift plots that lie at different places.)"""
        self._axes["bottom"].show_time(of_time)
        if (low, high) != self.x_range:
            self._box.setXRange(low, high, padding=0)

    def fit_y(self, *, clip: bool = False, zero: bool = False, least: float | None = None) -> None:
        """Let the y axis reach from the lowest to the highest point shown, from `zero` on, and to `least` at least.
        `clip`: leave out what lies further from the middle nine tenths of the points than one and a half times
        their range."""
        heights = np.concatenate([np.asarray(y, dtype=float) for y in (*self._heights.values(), ())])
        if self._log:
            heights = np.log10(heights[heights > 0.0])
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
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat line lies in the middle
            around = 0.05 * abs(high) or 0.5
            low, high = low - around, high + around
        room = _PADDING * (high - low)
        wanted = (0.0 if zero and low == 0.0 else low - room, high + room)
        if wanted != self.y_range:
            self._box.setYRange(*wanted, padding=0)

    # --- crosshair -----------------------------------------------------------------------------------

    def show_cross(self, x: float | None, words: str = "") -> None:
        """A vertical line at `x`, with `words` on the axis below it; None: no line."""
        wanted = None if x is None else (x, words)
        if wanted == self._cross:
            return
        for cross in (self._cross, wanted):
            if cross is not None:
                self.viewport().update(self._cross_area(*cross).toAlignedRect())
        self._cross = wanted

    def _cross_area(self, x: float, words: str) -> QRectF:
        place, whole = self._box.mapViewToScene(QPointF(x, 0.0)).x(), self._box.sceneBoundingRect()
        half = self.fontMetrics().horizontalAdvance(words) / 2 + 8 if words else 2
        half += abs(min(0.0, place - half)) + max(0.0, place + half - self.width())  # pushed in at the edges
        return QRectF(place - half, whole.top(), 2 * half, self.height() - whole.top())

    def drawForeground(self, painter: QPainter, rect: QRectF) -> None:  # noqa: N802 - Qt's name
        super().drawForeground(painter, rect)
        whole = self._box.sceneBoundingRect()
        painter.save()
        painter.setClipRect(whole)
        if self._lines.size:
            pen = pg.mkPen(self._colour("muted", 130), width=1, style=Qt.PenStyle.DotLine)
            painter.setPen(pen)
            for x in self._lines:
                self._draw_vertical(painter, float(x), whole)
        for name, (places, heights) in self._beads.items():
            points = map(QPointF, places, np.log10(heights) if self._log else heights)
            paint_beads(painter, map(self._box.mapViewToScene, points), self._colour(self._curves[name][2]))
        if self._cross is not None:
            painter.setPen(pg.mkPen(self._tokens.muted))
            self._draw_vertical(painter, self._cross[0], whole)
        if self._tabbed and self.hasFocus():
            painter.setPen(pg.mkPen(self._tokens.accent))
            painter.drawRect(whole.adjusted(0, 0, -1, -1))
        painter.restore()
        if self._cross is not None and self._cross[1]:
            self._draw_words(painter, *self._cross)

    def _draw_vertical(self, painter: QPainter, x: float, whole: QRectF) -> None:
        place = round(self._box.mapViewToScene(QPointF(x, 0.0)).x())
        painter.drawLine(place, int(whole.top()), place, int(whole.bottom()))

    def _draw_words(self, painter: QPainter, x: float, words: str) -> None:
        whole = self._box.sceneBoundingRect()
        place = self._box.mapViewToScene(QPointF(x, 0.0)).x()
        width = self.fontMetrics().horizontalAdvance(words) + 8
        left = min(max(place - width / 2, 0.0), self.width() - width - 1.0)
        box = QRectF(left, whole.bottom() + 1, width, self.height() - whole.bottom() - 2)
        painter.setPen(pg.mkPen(self._tokens.border))
        painter.setBrush(QColor(self._tokens.window))
        painter.drawRect(box)
        painter.setFont(self.font())
        painter.setPen(pg.mkPen(self._tokens.text))
        painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), words)

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
        """With Ctrl: zoom. Without: the page scrolls, as under any other widget."""
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
        by_key = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason, Qt.FocusReason.ShortcutFocusReason)
        self._tabbed = event.reason() in by_key
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 - Qt's name
        super().focusOutEvent(event)
        self.viewport().update()

    # --- looks ---------------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.setBackground(tokens.surface)
        small = self.font()
        small.setPointSizeF(max(7.0, small.pointSizeF() - 1.5))
        for axis in self._axes.values():
            axis.setPen(pg.mkPen(tokens.border))
            axis.setTextPen(pg.mkPen(tokens.muted))
            axis.setStyle(tickFont=small)
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
