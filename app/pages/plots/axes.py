"""Axes with short tick labels: 8,000, 12.5k, 1.5M, 1:30:00; exponents below 0.0001."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import pyqtgraph as pg
from PySide6.QtGui import QFont

from app.theme.palette import Palette
from app.widgets import formatting

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_SPACINGS: Final = (  # seconds
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
)
_MIN_TICK_DISTANCE_X: Final = 90  # pixels between ticks
_MIN_TICK_DISTANCE_Y: Final = 12
_MIN_LOG_TICK_DISTANCE: Final = 16
_TICKS_PER_DECADE: Final = (1, 2, 5)  # of a log axis with enough room
_MAX_TICKS: Final = 6  # on a vertical axis
_UNITS: Final = ((1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from this magnitude on: unit, suffix
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
    """One level of ticks, without a scale factor in the axis title. On a linear axis all ticks have the same unit."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self.setStyle(hideOverlappingLabels=True)
        self._is_duration = False

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:  # noqa: N802 - pyqtgraph's name
        if self.logMode:
            return [format_tick(10.0**value) for value in values]
        if self._is_duration:
            return [formatting.format_duration(value) for value in values]
        return [format_tick(value, max(map(abs, self.range))) for value in values]

    def tickSpacing(self, low: float, high: float, size: float) -> list[tuple[float, float]]:  # noqa: N802 - pyqtgraph's name
        is_vertical = self.orientation == "left"
        pixels = max(_MIN_TICK_DISTANCE_Y, size / _MAX_TICKS) if is_vertical else _MIN_TICK_DISTANCE_X
        min_spacing = (high - low) * pixels / max(size, 1.0)
        if self._is_duration:
            return [(next((spacing for spacing in _TIME_SPACINGS if spacing >= min_spacing), _TIME_SPACINGS[-1]), 0.0)]
        power: float = 10.0 ** math.floor(math.log10(max(min_spacing, 1e-300)))
        spacing = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= min_spacing * (1 - 1e-9))
        return [(spacing if is_vertical else max(1.0, spacing), 0.0)]  # steps and tokens are integers

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float | None, list[float]]]:  # noqa: N802 - pyqtgraph's name
        """Return ticks. On a log axis (`low` and `high` are log10): 1, 2 and 5 of each decade, only decades if there
        are many, and linear ticks over less than two thirds of a decade, where pyqtgraph has none."""
        if not self.logMode:
            ticks: list[tuple[float | None, list[float]]] = super().tickValues(low, high, size)
            return ticks
        if high - low < _MIN_LOG_DECADES:
            spacing = self.tickSpacing(10.0**low, 10.0**high, size)[0][0]
            first = math.ceil(10.0**low / spacing)
            return [(spacing, [math.log10(spacing * tick) for tick in range(first, int(10.0**high / spacing) + 1)])]
        has_room = (high - low) * len(_TICKS_PER_DECADE) * _MIN_LOG_TICK_DISTANCE <= size
        digits = _TICKS_PER_DECADE if has_room else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1)
        values = [power + math.log10(digit) for power in powers for digit in digits]
        return [(None, [value for value in values if low <= value <= high])]

    def set_is_duration(self, is_duration: bool) -> None:
        """Set whether values are seconds, shown as 1:30:00."""
        if is_duration != self._is_duration:
            self._is_duration = is_duration
            self.picture: Any = None  # pyqtgraph's cached drawing, which has the other ticks
            self.update()


def format_tick(value: float, largest: float = 0.0) -> str:
    """Format one tick with at most six digits. The unit is that of `largest`, the largest absolute end of the axis, or
    of the value: none below 10,000, then k, M and B (billions).
    """
    magnitude = max(abs(value), largest)
    unit, suffix = next(((unit, suffix) for least, unit, suffix in _UNITS if magnitude >= least), (1.0, ""))
    if abs(value) < 1e-9 * magnitude:  # a rounding error of 0
        return "0"
    return f"{value / unit:,.6g}{suffix}".replace("e-0", "e-")
