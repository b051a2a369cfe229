"""Series as they are drawn: thinned to what a screen can show, smoothed, and read at one place.

A million points are never looked through again for a frame: of every 16 neighbours the least, the greatest or the
mean is kept, of 4 of these again, and so on (a pyramid), and what has been worked out stays when rows are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from app.state.measurements.smoothing import Smoothed
from app.state.measurements.table import Array, Table
from app.state.measurements.table import Column as Values

_FIRST: Final = 16  # rows in a block of the lowest level
_NEXT: Final = 4  # blocks of one level in a block of the next
_AT_ONCE: Final = 1 << 17  # rows that are worked through in some ms
_DETAIL: Final = 4000  # points of a curve that are shown at most, about: more than there are pixels


class _Level:
    """Values of blocks, in a buffer that doubles."""

    def __init__(self) -> None:
        self._buffer = np.empty(64, np.float32)
        self.length = 0

    @property
    def values(self) -> Values:
        return self._buffer[: self.length]

    def append(self, values: Values) -> None:
        end = self.length + values.size
        if end > self._buffer.size:
            grown = np.empty(max(end, 2 * self._buffer.size), np.float32)
            grown[: self.length] = self.values
            self._buffer = grown
        self._buffer[self.length : end] = values
        self.length = end


class Blocks:
    """One operation over blocks of a growing column. `operation`: (blocks, rows) → (blocks,)"""

    def __init__(self, operation: Callable[[Values], Values]) -> None:
        self._operation = operation
        self._levels: list[_Level] = []

    @property
    def reached(self) -> int:
        """Rows that are in them; 0 where there are too few for any."""
        return _FIRST * self._levels[0].length if self._levels else 0

    def extend(self, y: Values) -> None:
        """Let the blocks reach the end of `y`, which is the same column with more rows."""
        below, count = y, _FIRST
        for place in range(64):
            if place == len(self._levels):
                if below.size < 64 * count:
                    return
                self._levels.append(_Level())
            level, whole = self._levels[place], below.size // count
            if whole > level.length:
                level.append(self._operation(below[level.length * count : whole * count].reshape(-1, count)))
            below, count = level.values, _NEXT

    def over(self, y: Values, first: int, last: int, size: int) -> Values:
        """The operation over every `size` rows (a power of two) of `y` from `first`, a multiple of it, to `last`."""
        below, count = y, 1
        for place, level in enumerate(self._levels):
            if _FIRST * _NEXT**place > size:
                break
            below, count = level.values, _FIRST * _NEXT**place
        whole = last // size * size
        parts = below[first // count : whole // count].reshape(-1, size // count)
        found = parts[:, 0] if parts.shape[1] == 1 else self._operation(parts)
        if whole == last:
            return found
        return np.concatenate((found, self._operation(y[whole:last].reshape(1, -1))))


def _least(parts: Values) -> Values:
    least: Values = np.fmin.reduce(parts, axis=1)
    return least


def _greatest(parts: Values) -> Values:
    greatest: Values = np.fmax.reduce(parts, axis=1)
    return greatest


def _mean(parts: Values) -> Values:
    mean: Values = np.nan_to_num(parts).mean(axis=1)
    return mean


class Curve:
    """One column of a table, smoothed or as it is. `axis` is the name of another one of the table, which never falls.

    What it hands out are views or copies that nobody may write to.
    """

    def __init__(self, table: Table, name: str, weight: float = 0.0) -> None:
        self.table, self._name = table, name
        self.weight = weight
        self._cuts = -1
        self._reset()

    def _reset(self) -> None:
        self._smoothed = Smoothed(self.weight) if self.weight > 0.0 else None
        self._least, self._greatest, self._means = Blocks(_least), Blocks(_greatest), Blocks(_mean)

    @property
    def y(self) -> Values:
        """All values."""
        y = self._raw()
        if self._smoothed is None:
            return y
        self._smoothed.extend(y)
        return self._smoothed.values

    def _raw(self) -> Values:
        if self._cuts != self.table.cuts:
            self._cuts = self.table.cuts
            self._reset()
        return self.table.column(self._name)

    def catch_up(self, *, means: bool = False) -> bool:
        """Work through some more rows, so that `between` (or `means`) need not do all at once; whether that was all."""
        y = raw = self._raw()
        if self._smoothed is not None:
            self._smoothed.extend(raw[: self._smoothed.length + _AT_ONCE])
            y = self._smoothed.values
        for blocks in (self._means,) if means else (self._least, self._greatest):
            end = blocks.reached + _AT_ONCE
            blocks.extend(y[:end])
        return y.size == raw.size <= end

    def x(self, axis: str) -> Array:
        return self.table.column(axis)

    def between(self, axis: str, low: float, high: float, most: int = _DETAIL) -> tuple[Array, Values]:
        """The points from `low` to `high` and one more at each side; where these are more than `most`, the least and
        the greatest value of neighbours, in turn."""
        y, x = self.y, self.x(axis)
        first, last = _rows(x, low, high)
        size = _size(last - first, most // 2)
        if size == 1:
            return x[first:last], y[first:last]
        first = first // size * size
        self._least.extend(y)
        self._greatest.extend(y)
        places = np.repeat(x[first:last:size], 2)
        extremes = np.empty(places.size, np.float32)
        extremes[0::2] = self._least.over(y, first, last, size)
        extremes[1::2] = self._greatest.over(y, first, last, size)
        return places, extremes

    def means(self, axis: str, low: float, high: float, most: int = _DETAIL) -> tuple[Array, Values]:
        """Likewise, with means: for what is summed up."""
        y, x = self.y, self.x(axis)
        first, last = _rows(x, low, high)
        size = _size(last - first, most)
        first = first // size * size
        if size > 1:
            self._means.extend(y)
        return x[first:last:size], self._means.over(y, first, last, size)

    def at(self, axis: str, place: float) -> float:
        """The value nearest to a place on the axis; NaN outside of the curve and where there is none."""
        y, x = self.y, self.x(axis)
        if not x.size or not x[0] <= place <= x[-1]:
            return math.nan
        row = int(np.searchsorted(x, place))
        if row and place - x[row - 1] < x[row] - place:
            row -= 1
        return float(y[row])

    def end(self, axis: str) -> float:
        """How far it reaches on the axis; 0 while there is nothing."""
        x = self.x(axis)
        return float(x[-1]) if x.size else 0.0

    def last(self) -> float:
        """The newest number among the newest hundred values, else NaN."""
        y = self.y[-100:]
        good = y[np.isfinite(y)]
        return float(good[-1]) if good.size else math.nan


def stacked(
    curves: Sequence[Curve], axis: str, low: float, high: float, most: int = _DETAIL
) -> tuple[Array, list[Array]]:
    """Columns of one table on top of one another: x, and the upper edge of each from the lowest upwards."""
    edges: list[Array] = []
    x = height = np.empty(0)
    for curve in curves:
        x, part = curve.means(axis, low, high, most)
        height = part.astype(np.float64) if not edges else height + part
        edges.append(height)
    return x, edges


def _rows(x: Array, low: float, high: float) -> tuple[int, int]:
    first, last = (int(row) for row in np.searchsorted(x, (low, high)))
    return max(0, first - 1), min(x.size, last + 1)


def _size(rows: int, most: int) -> int:
    """A power of two of rows that leaves at most `most`."""
    size = 1
    while rows > size * most:
        size *= 2
    return size
