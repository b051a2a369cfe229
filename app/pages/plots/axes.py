"""Axes with tick labels in plain notation: 8,000, 12.5k, 1:30:00."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import pyqtgraph as pg

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_SPANS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
)
_TIME_TICK: Final = 90  # minimum pixels between ticks
_LOG_TICK: Final = 16
_TICK: Final = 12  # on a vertical axis
_MOST: Final = 6  # ticks on it
_LINEAR: Final = 0.65  # decades; a shorter log axis has the ticks of a linear one


class Axis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph ships no types
    """Ticks with one unit for all, without exponents or (x0.001); time as 1:30:00 at whole minutes and hours."""

    of_time = False

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:  # noqa: N802 - pyqtgraph's name
        if self.logMode:
            return [tick_text(10.0**value, spacing or 0.0) for value in values]
        if self.of_time:
            return [time_text(value) for value in values]
        largest = max((abs(value * scale) for value in self.range), default=0.0)
        return [tick_text(value * scale, spacing * scale, largest) for value in values]

    def tickSpacing(self, low: float, high: float, size: float) -> list[tuple[float, float]]:  # noqa: N802 - pyqtgraph's name
        if self.orientation == "left":
            return [(_round_up((high - low) * max(_TICK / max(size, 1.0), 1 / _MOST)), 0.0)]
        if not self.of_time:  # steps or tokens are integers
            return [(max(1.0, spacing), first) for spacing, first in super().tickSpacing(low, high, size)]
        least = (high - low) * _TIME_TICK / max(size, 1.0)
        return [(next((span for span in _SPANS if span >= least), _SPANS[-1]), 0.0)]

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float | None, list[float]]]:  # noqa: N802 - pyqtgraph's name
        """On a log axis: 1, 2 and 5 of each decade, only decades if there are many, and linear ticks over less than
        two thirds of a decade, where pyqtgraph has none."""
        if not self.logMode:
            found: list[tuple[float | None, list[float]]] = super().tickValues(low, high, size)
            return found
        low, high = sorted((low, high))
        if high - low < _LINEAR:
            spacing = super().tickSpacing(10.0**low, 10.0**high, size)[0][0]
            first = math.ceil(10.0**low / spacing)
            return [(spacing, [math.log10(spacing * tick) for tick in range(first, int(10.0**high / spacing) + 1)])]
        each = (1,) if (high - low) * _LOG_TICK * 3 > size else (1, 2, 5)
        powers = range(math.floor(low), math.ceil(high) + 1)
        places = [power + math.log10(digit) for power in powers for digit in each]
        return [(None, [place for place in places if low <= place <= high])]

    def show_time(self, on: bool) -> None:
        if on != self.of_time:
            self.of_time = on
            self.picture: Any = None  # discards the drawing with the other ticks
            self.update()


def _round_up(spacing: float) -> float:
    """The next 1, 2 or 5 of a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(max(spacing, 1e-300)))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= spacing * (1 - 1e-9))


def time_text(seconds: float) -> str:
    """`0:30:00`; of days, `2 d 6:00`."""
    days, rest = divmod(round(seconds), _DAY)
    hours, rest = divmod(rest, _HOUR)
    clock = f"{hours}:{rest // _MINUTE:02d}"
    return f"{days} d {clock}" if days else f"{clock}:{rest % _MINUTE:02d}"


def tick_text(value: float, spacing: float, largest: float = 0.0) -> str:
    """One tick. `spacing` determines the decimals (0: two significant digits), `largest`, the unit."""
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
