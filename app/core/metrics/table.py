"""Columnar storage of measurements: rows are appended in constant time and read as views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

Axis = Literal["step", "tokens", "time"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
Array = npt.NDArray[np.float64]

_INITIAL_CAPACITY: Final = 256


class MetricTable:
    """The axes, which do not decrease, and columns of measurements. The buffer doubles when it is full."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = {name: index for index, name in enumerate((*AXES, *columns))}
        self._values: Array = np.empty((len(self.columns), _INITIAL_CAPACITY))  # (columns, rows)
        self.length = 0  # number of rows
        self.version = 0
        self.rows_per_point = 1  # rows of the run that one row stands for, see `downsampled`

    def append(self, row: tuple[float | None, ...]) -> None:
        """Append one row. None becomes NaN."""
        self._reserve(self.length + 1)
        self._values[:, self.length] = row
        self.length += 1
        self.version += 1

    def extend(self, values: Array) -> None:
        """Append rows of shape (columns, rows)."""
        end = self.length + values.shape[1]
        self._reserve(end)
        self._values[:, self.length : end] = values
        self.length = end
        self.version += 1

    def _reserve(self, rows: int) -> None:
        if rows > self._values.shape[1]:
            values = np.empty((len(self.columns), max(rows, 2 * self._values.shape[1])))
            values[:, : self.length] = self._values[:, : self.length]
            self._values = values

    def column(self, name: str) -> Array:
        """The values so far, as a view that later changes of the table do not affect."""
        return self._values[self.columns[name], : self.length]

    def truncate_after(self, step: float) -> None:
        """Remove the rows after `step`."""
        kept = int(np.searchsorted(self.column("step"), step, side="right"))
        if kept < self.length:
            self._values, self.length = self._values.copy(), kept
            self.version += 1

    def downsampled(self, limit: int) -> MetricTable:
        """Returns a table of at most `limit` rows: each bucket of neighboring rows keeps the minimum and the maximum of
        each column, in the order in which the column rises or falls. NaN is ignored; a bucket of NaN stays NaN."""
        if self.length <= limit:
            return self
        values, size = self._values[:, : self.length], -(-self.length // (limit // 2))
        first = np.arange(0, self.length, size)
        last = np.minimum(first + size, self.length) - 1
        low, high = np.fmin.reduceat(values, first, axis=1), np.fmax.reduceat(values, first, axis=1)
        falls = values[:, first] > values[:, last]
        found = np.stack((np.where(falls, high, low), np.where(falls, low, high)), axis=2)
        table = MetricTable(name for name in self.columns if name not in AXES)
        table.rows_per_point = max(1, round(self.length / limit))
        table.extend(found.reshape(len(values), -1))
        return table

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes."""
        return 8 * len(self.columns) * self.length
