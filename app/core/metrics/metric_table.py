"""Columnar storage of measurements: rows are appended in constant time and read as views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

XAxis = Literal["step", "tokens", "time"]
AXES: Final[tuple[XAxis, ...]] = get_args(XAxis)
Array = npt.NDArray[Any]

_INITIAL_CAPACITY: Final = 256
_MAX_PENDING_ROWS: Final = 512


class MetricTable:
    """Rows of x axes (non-decreasing, float64) and measurements (float32). Buffers double when they are full."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = {name: index for index, name in enumerate((*AXES, *columns))}
        shape = (len(self.columns) - len(AXES), _INITIAL_CAPACITY)
        self._buffers: list[Array] = [np.empty((len(AXES), _INITIAL_CAPACITY)), np.empty(shape, np.float32)]
        self._stored = 0  # rows
        self._pending: list[tuple[float | None, ...]] = []  # stored in blocks: a third of the time of single rows
        self.version = 0  # changes with every change of rows
        self.rows_per_point = 1.0  # 1, or the number of rows before `downsampled` per row after it

    @property
    def length(self) -> int:
        """Number of rows."""
        return self._stored + len(self._pending)

    def append(self, row: tuple[float | None, ...]) -> None:
        """Append one row: (step, tokens, time, *columns). None becomes NaN; values beyond float32 become infinite."""
        self._pending.append(row)
        self.version += 1
        if len(self._pending) >= _MAX_PENDING_ROWS:
            self._flush()

    def extend(self, values: Array) -> None:
        """Append rows. `values`: (3 + columns, rows), in the order of a row."""
        self._store(values, self._flush())
        self.version += 1

    def _store(self, values: Array, stored: list[Array]) -> None:
        end, capacity = self._stored + values.shape[1], self._buffers[0].shape[1]
        if end > capacity:
            self._buffers = [np.empty((len(part), max(end, 2 * capacity)), part.dtype) for part in stored]
            for buffer, part in zip(self._buffers, stored, strict=True):
                buffer[:, : self._stored] = part
        with np.errstate(over="ignore"):
            for buffer, part in zip(self._buffers, (values[: len(AXES)], values[len(AXES) :]), strict=True):
                buffer[:, self._stored : end] = part
        self._stored = end

    def _flush(self) -> list[Array]:
        """Store the pending rows. Returns views of all rows: axes and measurements."""
        if self._pending:
            rows, self._pending = np.array(self._pending, dtype=np.float64).T, []
            self._store(rows, self._flush())
        return [buffer[:, : self._stored] for buffer in self._buffers]

    def column(self, name: str) -> Array:
        """Return the values so far, as a view that later changes of the table do not affect."""
        index, (axes, values) = self.columns[name], self._flush()
        column: Array = axes[index] if index < len(AXES) else values[index - len(AXES)]
        return column

    def truncate_after(self, step: float) -> None:
        """Remove the rows after `step`."""
        kept = int(np.searchsorted(self.column("step"), step, side="right"))
        if kept < self._stored:  # copied, because new rows would overwrite those in views returned before
            self._buffers, self._stored = [buffer.copy() for buffer in self._buffers], kept
            self.version += 1

    def downsampled(self, limit: int) -> MetricTable:
        """Return a table of at most `limit` rows (at least 2), or this one if it has no more.

        Each bucket of neighboring rows keeps the minimum and the maximum of each column: the minimum first, unless the
        column falls from the first row of the bucket to the last. NaN is ignored; a bucket of NaN stays NaN.
        """
        if self.length <= limit:
            return self
        values, size = np.concatenate(self._flush()), -(-self.length // (limit // 2))
        first = np.arange(0, self.length, size)
        last = np.minimum(first + size, self.length) - 1
        low, high = np.fmin.reduceat(values, first, axis=1), np.fmax.reduceat(values, first, axis=1)
        falls = values[:, first] > values[:, last]
        found = np.stack((np.where(falls, high, low), np.where(falls, low, high)), axis=2)
        table = MetricTable(name for name in self.columns if name not in AXES)
        table.rows_per_point = size / 2
        table.extend(found.reshape(len(values), -1))
        return table

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes."""
        return sum(part.nbytes for part in self._flush())
