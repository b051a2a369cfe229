"""The area of a plot that shows curves: zooms and pans with the mouse."""

from __future__ import annotations

from typing import Any, Final

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt

_MIN_SELECTION: Final = 0.04  # of the plot; a flatter selection leaves the range of that axis as it is


class ZoomBox(pg.ViewBox):  # type: ignore[misc]  # pyqtgraph ships no types
    """Dragging zooms to the selected rectangle; a flat one, or one over an axis, zooms along one axis. Dragging with
    Shift or the middle button pans. The wheel zooms the x axis; with Shift, or over the y axis, the y axis."""

    def mouseDragEvent(self, event: Any, axis: int | None = None) -> None:  # noqa: N802 - pyqtgraph's name
        if event.button() == Qt.MouseButton.RightButton:
            event.ignore()  # opens the menu of the plot
            return
        if event.isStart():
            has_shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            pans = has_shift or event.button() == Qt.MouseButton.MiddleButton
            self.setMouseMode(self.PanMode if pans else self.RectMode)
        if self.state["mouseMode"] == self.RectMode:
            event.currentItem, axis = self, None  # an axis passes events in its own coordinates
        super().mouseDragEvent(event, axis)

    def updateScaleBox(self, first: QPointF, second: QPointF) -> None:  # noqa: N802 - pyqtgraph's name
        x = _selection(first.x(), second.x(), 0.0, self.width())
        y = _selection(first.y(), second.y(), 0.0, self.height())
        (left, right), (top, bottom) = x or (0.0, self.width()), y or (0.0, self.height())
        super().updateScaleBox(QPointF(left, top), QPointF(right, bottom))
        self.rbScaleBox.setVisible(bool(x or y))

    def showAxRect(self, selected: QRectF) -> None:  # noqa: N802 - pyqtgraph's name
        x_range, y_range = self.viewRange()
        x = _selection(selected.left(), selected.right(), *x_range)
        y = _selection(selected.top(), selected.bottom(), *y_range)
        if x or y:
            self.setRange(xRange=x, yRange=y, padding=0)
            self.sigRangeChangedManually.emit([bool(x), bool(y)])

    def wheelEvent(self, event: Any, axis: int | None = None) -> None:  # noqa: N802 - pyqtgraph's name
        if axis is None:
            axis = self.YAxis if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else self.XAxis
        super().wheelEvent(event, axis)


def _selection(first: float, second: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the selected part of the range from `low` to `high`; None if it is too small."""
    start, end = max(min(first, second), low), min(max(first, second), high)
    return (start, end) if end - start >= _MIN_SELECTION * (high - low) else None
