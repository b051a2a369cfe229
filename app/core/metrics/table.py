"""Columnar storage of measurements: rows are appended in constant time and read as views."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from app.core.metrics.downsampling import downsample_minmax

Axis = Literal["step", "tokens", "time"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
Array = npt.NDArray[np.float64]
Values = npt.NDArray[Any]

_INITIAL_CAPACITY: Final = 256
_MAX_PENDING_ROWS: Final = 512


class MetricTable:
    """Axes in float64, measurements in float32. Buffers double when they are full."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = {name: place for place, name in enumerate((*AXES, *columns))}
        self._buffers: list[Values] = [
            np.empty(_INITIAL_CAPACITY, np.float64 if name in AXES else np.float32) for name in self.columns
        ]
        self._stored_rows = 0
        self._pending_rows: list[tuple[float | None, ...]] = []  # stored together, in a third of the time
        self.version = 0
        self.truncation_count = 0  # how often rows were removed
        self.rows_per_point = 1  # rows of the run that one row stands for, see `downsampled`

    @property
    def length(self) -> int:
        """Number of rows."""
        return self._stored_rows + len(self._pending_rows)

    def append(self, row: tuple[float | None, ...]) -> None:
        """Append one row. None becomes NaN; values beyond float32 become infinite."""
        self._pending_rows.append(row)
        self.version += 1
        if len(self._pending_rows) >= _MAX_PENDING_ROWS:
            self._flush()

    def extend(self, columns: Sequence[Values]) -> None:
        """Append many rows, given by columns."""
        self._flush()
        if columns[0].size:
            self._store(columns)
            self.version += 1

    def _flush(self) -> None:
        if self._pending_rows:
            rows = np.array(self._pending_rows, dtype=np.float64)
            self._pending_rows.clear()
            self._store(list(rows.T))

    def _store(self, columns: Sequence[Values]) -> None:
        end = self._stored_rows + columns[0].size
        if end > self._buffers[0].size:
            old, capacity = self._buffers, max(end, 2 * self._buffers[0].size)
            self._buffers = [np.empty(capacity, buffer.dtype) for buffer in old]
            self._copy_rows(old)
        with np.errstate(over="ignore"):
            for buffer, values in zip(self._buffers, columns, strict=True):
                buffer[self._stored_rows : end] = values
        self._stored_rows = end

    def _copy_rows(self, source: list[Values]) -> None:
        for buffer, old in zip(self._buffers, source, strict=True):
            buffer[: self._stored_rows] = old[: self._stored_rows]

    def column(self, name: str) -> Values:
        """The values so far, as a view."""
        self._flush()
        return self._buffers[self.columns[name]][: self._stored_rows]

    def last(self, name: str) -> float:
        column = self.column(name)
        return float(column[-1]) if column.size else math.nan

    def truncate_after(self, step: float) -> None:
        """Remove the rows after `step`. Views handed out before keep their values, because the buffers are new."""
        kept = int(np.searchsorted(self.column("step"), step, side="right"))
        if kept < self._stored_rows:
            old, self._stored_rows = self._buffers, kept
            self._buffers = [np.empty_like(buffer) for buffer in old]
            self._copy_rows(old)
            self.version += 1
            self.truncation_count += 1

    def downsampled(self, limit: int) -> MetricTable:
        """At most `limit` rows with the extremes of each bucket: see `downsample_minmax`."""
        names = [name for name in self.columns if name not in AXES]
        copy = MetricTable(names)
        copy.rows_per_point = self.rows_per_point * max(1, round(self.length / limit))
        axes = np.stack([self.column(name) for name in AXES])
        columns = list(downsample_minmax(axes, axes[:1], limit)[0])
        columns += [downsample_minmax(axes, self.column(name)[None], limit)[1][0] for name in names]
        copy.extend(columns)
        return copy

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes."""
        return sum(buffer.itemsize * self.length for buffer in self._buffers)
