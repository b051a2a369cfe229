"""Smoothing of series."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.core.metrics.metric_table import Array

_EPSILON: Final = 1e-12  # terms with a smaller weight are dropped


class ExponentialAverage:
    """Bias-corrected exponential moving average of a growing column (Kingma and Ba, 2015, section 3).

    `weight` in [0, 1) is the share of the past. NaN values are skipped; a gap longer than the memory is NaN.
    """

    def __init__(self, weight: float) -> None:
        self.weight = min(weight, 0.999999)
        self._last = np.zeros((2, 1))  # decayed sums of the values and of their weights
        self._buffer: Array = np.empty(0, np.float32)  # doubles when it is full
        self.values: Array = self._buffer

    def extend(self, y: Array) -> None:
        """Process the rows that `y`, the same column, has gained."""
        done = self.values.size
        new = y[done:].astype(np.float64)
        if not new.size:
            return
        known = np.isfinite(new)
        sums = np.stack((np.where(known, new, 0.0), known))
        sums[:, :1] += self.weight * self._last
        shift = 1
        while shift < new.size and self.weight**shift > _EPSILON:  # prefix sum in log2(memory) passes
            sums[:, shift:] += self.weight**shift * sums[:, :-shift]
            shift *= 2
        self._last = sums[:, -1:].copy()
        if y.size > self._buffer.size:
            self._buffer = np.empty(max(y.size, 2 * done), np.float32)
            self._buffer[:done] = self.values
        self.values = self._buffer[: y.size]
        self.values[done:] = np.nan
        np.divide(sums[0], sums[1], out=self.values[done:], where=sums[1] > _EPSILON)
