"""Series as plots read them: raw or smoothed columns of a table."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from app.core.metrics.table import Array, MetricTable, Values

_EPSILON: Final = 1e-12  # terms with a smaller weight are dropped


class ExponentialAverage:
    """Bias-corrected exponential moving average of a growing column (Kingma and Ba, 2015, section 3).

    `weight` in [0, 1) is the share of the past. NaN values are skipped; a gap longer than the memory is NaN.
    """

    def __init__(self, weight: float) -> None:
        self._weight = min(weight, 0.999999)
        self._last = np.zeros((2, 1))  # decayed sums of the values and of their weights
        self.values: Values = np.empty(0, np.float32)

    def extend(self, y: Values) -> None:
        """Process the rows that `y`, the same column, has gained."""
        new = y[self.values.size :].astype(np.float64)
        if not new.size:
            return
        known = np.isfinite(new)
        sums = np.stack((np.where(known, new, 0.0), known))
        sums[:, :1] += self._weight * self._last
        shift = 1
        while shift < new.size and self._weight**shift > _EPSILON:  # prefix sum in log2(memory) passes
            sums[:, shift:] += self._weight**shift * sums[:, :-shift]
            shift *= 2
        self._last = sums[:, -1:].copy()
        average = np.full(new.size, np.nan, np.float32)
        np.divide(sums[0], sums[1], out=average, where=sums[1] > _EPSILON, casting="same_kind")
        self.values = np.concatenate((self.values, average))


class Curve:
    """One column of a table, smoothed if `weight` is above 0. The arrays it returns must not be written to."""

    def __init__(self, table: MetricTable, name: str, weight: float = 0.0) -> None:
        self.table, self._name, self.weight = table, name, weight
        self._truncation_count = table.truncation_count
        self._average = ExponentialAverage(weight)

    @property
    def y(self) -> Values:
        """All values."""
        y = self.table.column(self._name)
        if not self.weight:
            return y
        if self._truncation_count != self.table.truncation_count:
            self._truncation_count = self.table.truncation_count
            self._average = ExponentialAverage(self.weight)
        self._average.extend(y)
        return self._average.values

    def x(self, axis: str) -> Array:
        return self.table.column(axis)

    def value_at(self, axis: str, position: float) -> float:
        """The value of the row nearest to a position on the axis; NaN outside of the curve."""
        y, x = self.y, self.x(axis)
        if not x.size or not x[0] <= position <= x[-1]:
            return math.nan
        row = int(np.searchsorted(x, position))
        if row and position - x[row - 1] < x[row] - position:
            row -= 1
        return float(y[row])

    def last(self) -> float:
        """The last finite value of the last hundred rows; NaN if there is none."""
        y = self.y[-100:]
        good = y[np.isfinite(y)]
        return float(good[-1]) if good.size else math.nan
