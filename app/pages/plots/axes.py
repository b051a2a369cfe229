"""Axes with tick labels in plain notation: 8,000, 12.5k, 1:30:00."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import pyqtgraph as pg
from PySide6.QtGui import QFont

from app.theme.palette import Palette
from app.widgets import formatting

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_SPACINGS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
)
_MIN_TICK_WIDTH: Final = 90  # pixels between ticks
_MIN_TICK_HEIGHT: Final = 12
_MIN_LOG_TICK_HEIGHT: Final = 16
_MAX_TICKS: Final = 6  # on a vertical axis
_MIN_LOG_DECADES: Final = 0.65  # a shorter log axis has the ticks of a linear one


def style_axis(axis: pg.AxisItem, palette: Palette, font: QFont) -> None:
    """Apply the colors of a theme and the style of all plots."""
    small = QFont(font)
    small.setPointSizeF(max(7.0, font.pointSizeF() - 1.5))
    axis.enableAutoSIPrefix(False)
    axis.setStyle(tickLength=-4, maxTickLevel=0, tickFont=small)
    axis.setPen(pg.mkPen(palette.border))
    axis.setTextPen(pg.mkPen(palette.muted))


class Axis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph ships no types
    """One level of ticks with one unit for all, without exponents or (x0.001); time as 1:30:00."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self.setStyle(hideOverlappingLabels=True)
        self._is_time = False

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:  # noqa: N802 - pyqtgraph's name
        if self.logMode:
            return [format_tick(10.0**value) for value in values]
        if self._is_time:
            return [formatting.format_duration(value) for value in values]
        return [format_tick(value, max(map(abs, self.range))) for value in values]

    def tickSpacing(self, low: float, high: float, size: float) -> list[tuple[float, float]]:  # noqa: N802 - pyqtgraph's name
        is_vertical = self.orientation == "left"
        pixels = max(_MIN_TICK_HEIGHT, size / _MAX_TICKS) if is_vertical else _MIN_TICK_WIDTH
        least = (high - low) * pixels / max(size, 1.0)
        if self._is_time:
            return [(next((spacing for spacing in _TIME_SPACINGS if spacing >= least), _TIME_SPACINGS[-1]), 0.0)]
        power: float = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
        spacing = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
        return [(spacing if is_vertical else max(1.0, spacing), 0.0)]  # steps and tokens are integers

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float | None, list[float]]]:  # noqa: N802 - pyqtgraph's name
        """On a log axis: 1, 2 and 5 of each decade, only decades if there are many, and linear ticks over less than
        two thirds of a decade, where pyqtgraph has none."""
        if not self.logMode:
            ticks: list[tuple[float | None, list[float]]] = super().tickValues(low, high, size)
            return ticks
        if high - low < _MIN_LOG_DECADES:
            spacing = self.tickSpacing(10.0**low, 10.0**high, size)[0][0]
            first = math.ceil(10.0**low / spacing)
            return [(spacing, [math.log10(spacing * tick) for tick in range(first, int(10.0**high / spacing) + 1)])]
        digits = (1,) if (high - low) * _MIN_LOG_TICK_HEIGHT * 3 > size else (1, 2, 5)
        powers = range(math.floor(low), math.ceil(high) + 1)
        values = [power + math.log10(digit) for power in powers for digit in digits]
        return [(None, [value for value in values if low <= value <= high])]

    def set_time(self, on: bool) -> None:
        """Format values as durations in seconds."""
        if on != self._is_time:
            self._is_time = on
            self.picture: Any = None  # discards the drawing with the other ticks
            self.update()


def format_tick(value: float, largest: float = 0.0) -> str:
    """Format one tick. `largest`: the largest tick of the axis, which determines the unit."""
    size = max(abs(value), largest)
    unit, sign = (1e6, "M") if size >= 1e6 else (1e3, "k") if size >= 1e4 else (1.0, "")
    if abs(value) < 1e-9 * size:  # a rounding error of 0
        return "0"
    return f"{value / unit:,.6g}{sign}".replace("e-0", "e-")
