"""Exponential moving averages of long series that grow: a million points in 20 ms, some more in microseconds."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from app.state.measurements.table import Array
from app.state.measurements.table import Column as Values

_WIDTH: Final = 64  # points that one pass over a chunk takes one after another; its rows go side by side
_CHUNK: Final = 1 << 16  # points at a time: they fit the processor's cache
_FEW: Final = 256  # for so few the passes do not pay
_LITTLE: Final = 1e-12  # a past that weighs less is forgotten


class Smoothed:
    """The average of a growing column with bias correction, as in Adam (Kingma and Ba, 2015, section 3).

    `weight` in (0, 1) is the share of the past. NaN is passed over: the average stays what it was (NaN before
    the first number, and in a gap longer than its memory).
    """

    def __init__(self, weight: float) -> None:
        self.weight = min(weight, 0.999999)
        self.length = 0
        self._buffer = np.empty(0, np.float32)
        self._sum, self._known = 0.0, 0.0  # of the past: of its values, and of how much is known of it

    @property
    def values(self) -> Values:
        """Those so far, as a view (float32)."""
        return self._buffer[: self.length]

    def extend(self, y: Values) -> None:
        """Let the averages reach the end of `y`, which is the same column with more rows."""
        if y.size > self._buffer.size:
            grown = np.empty(max(y.size, 2 * self._buffer.size), np.float32)
            grown[: self.length] = self.values
            self._buffer = grown
        while self.length < y.size:
            chunk = y[self.length : self.length + _CHUNK].astype(np.float64)
            self._buffer[self.length : self.length + chunk.size] = self._next(chunk)
            self.length += chunk.size

    def _next(self, chunk: Array) -> Array:
        known = np.isfinite(chunk)
        if not known.all():
            chunk = np.where(known, chunk, 0.0)
        elif self._known * (1.0 - self.weight) > 1.0 - _LITTLE:  # all of the past is known: no need to add it up
            sums = scan(chunk, self.weight, self._sum)
            self._sum = float(sums[-1])
            return sums * (1.0 - self.weight)
        sums = scan(chunk, self.weight, self._sum)
        weights = scan(known.astype(np.float64), self.weight, self._known)
        self._sum, self._known = float(sums[-1]), float(weights[-1])
        average: Array = np.full(chunk.size, math.nan)
        np.divide(sums, weights, out=average, where=weights > _LITTLE)
        return average


def scan(y: Array, weight: float, before: float) -> Array:
    """s[i] = weight * s[i - 1] + y[i], with s[-1] = `before`.

    Rows of `_WIDTH` points are summed side by side, then each is given what the rows before it leave.
    """
    if y.size < _FEW:
        found = []
        for value in y.tolist():
            before = weight * before + value
            found.append(before)
        return np.array(found, dtype=np.float64)
    rows = -(-y.size // _WIDTH)
    padded = np.zeros(rows * _WIDTH)
    padded[: y.size] = y
    sums = np.ascontiguousarray(padded.reshape(rows, _WIDTH).T)
    for place in range(1, _WIDTH):
        sums[place] += weight * sums[place - 1]
    left, factor = [], weight**_WIDTH
    for end in sums[-1].tolist():
        left.append(before)
        before = factor * before + end
    sums += np.outer(weight ** np.arange(1, _WIDTH + 1), left)
    return np.ascontiguousarray(sums.T).ravel()[: y.size]
