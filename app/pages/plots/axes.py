"""Axes with tick labels in plain notation: 8,000, 12.5k, 1:30:00."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import pyqtgraph as pg
from PySide6.QtGui import QFont

from app.theme.palette import Palette

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_SPACINGS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
)
_MIN_TIME_TICK_WIDTH: Final = 90  # pixels between ticks
_MIN_LOG_TICK_HEIGHT: Final = 16
_MIN_TICK_HEIGHT: Final = 12
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
    """Ticks with one unit for all, without exponents or (x0.001); time as 1:30:00 at whole minutes and hours."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self.setStyle(hideOverlappingLabels=True)
        self._is_time = False

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:  # noqa: N802 - pyqtgraph's name
        if self.logMode:
            return [format_tick(10.0**value, spacing or 0.0) for value in values]
        if self._is_time:
            return [format_time(value) for value in values]
        largest = max((abs(value * scale) for value in self.range), default=0.0)
        return [format_tick(value * scale, spacing * scale, largest) for value in values]

    def tickSpacing(self, low: float, high: float, size: float) -> list[tuple[float, float]]:  # noqa: N802 - pyqtgraph's name
        if self.orientation == "left":
            return [(_round_up((high - low) * max(_MIN_TICK_HEIGHT / max(size, 1.0), 1 / _MAX_TICKS)), 0.0)]
        if not self._is_time:  # steps or tokens are integers
            return [(max(1.0, spacing), first) for spacing, first in super().tickSpacing(low, high, size)]
        least = (high - low) * _MIN_TIME_TICK_WIDTH / max(size, 1.0)
        return [(next((spacing for spacing in _TIME_SPACINGS if spacing >= least), _TIME_SPACINGS[-1]), 0.0)]

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float | None, list[float]]]:  # noqa: N802 - pyqtgraph's name
        """On a log axis: 1, 2 and 5 of each decade, only decades if there are many, and linear ticks over less than
        two thirds of a decade, where pyqtgraph has none."""
        if not self.logMode:
            ticks: list[tuple[float | None, list[float]]] = super().tickValues(low, high, size)
            return ticks
        low, high = sorted((low, high))
        if high - low < _MIN_LOG_DECADES:
            spacing = super().tickSpacing(10.0**low, 10.0**high, size)[0][0]
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


def _round_up(spacing: float) -> float:
    """Return the next 1, 2 or 5 of a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(max(spacing, 1e-300)))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= spacing * (1 - 1e-9))


def format_time(seconds: float) -> str:
    """`0:30:00`; with days, `2 d 6:00`."""
    days, rest = divmod(round(seconds), _DAY)
    hours, rest = divmod(rest, _HOUR)
    clock = f"{hours}:{rest // _MINUTE:02d}"
    return f"{days} d {clock}" if days else f"{clock}:{rest % _MINUTE:02d}"


def format_tick(value: float, spacing: float, largest: float = 0.0) -> str:
    """Format one tick. `spacing` determines the decimals (0: two significant digits), `largest` the unit."""
    size = abs(value)
    if size < 1e-12:
        return "0"
    if max(size, largest) >= 1e4:
        unit, sign = (1e6, "M") if max(size, largest) >= 1e6 else (1e3, "k")
        if not spacing:
            return f"{value / unit:.4g}{sign}"
        text = f"{value / unit:.{_decimals(spacing / unit)}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{sign}"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if not spacing:
        return f"{value:,.0f}" if size >= 1000 else f"{value:.2g}" if size < 1 else f"{value:.3g}"
    return f"{value:,.{_decimals(spacing)}f}"


def _decimals(spacing: float) -> int:
    return max(0, math.ceil(-math.log10(spacing) - 1e-9))
