"""Rows of measurements in columns: appended in constant time, read without copying."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from app.state.measurements.thinning import thin

Axis = Literal["step", "tokens", "time"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
Array = npt.NDArray[np.float64]
Column = npt.NDArray[Any]
T = TypeVar("T")
Slices = Generator[None, None, T]
"""Work that is done a little at each `next`; what comes of it is returned in the end."""

_FIRST_CAPACITY: Final = 256
_MOST_WAITING: Final = 512


def finished(work: Slices[T]) -> T:
    """Do it all at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)


class Table:
    """The axes in float64, what is measured in float32: a plot shows four digits, and a long run takes half the memory.

    The buffers have unequal sizes, so that no two columns are copied on one append: at a million rows
    copying all at once would stop the window for a tenth of a second.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = {name: place for place, name in enumerate((*AXES, *columns))}
        self._buffers: list[Column] = [
            np.empty(_FIRST_CAPACITY + 16 * place, np.float64 if name in AXES else np.float32)
            for name, place in self.columns.items()
        ]
        self._room = _FIRST_CAPACITY  # of the smallest buffer
        self._filled = 0  # rows in the buffers
        self._waiting: list[tuple[float | None, ...]] = []  # rows to go there together, which takes a third of the time
        self.version = 0
        self.cuts = 0  # how often rows that were there went
        self.each = 1  # rows that one of these was made of

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self._filled + len(self._waiting)

    def append(self, row: tuple[float | None, ...]) -> None:
        """One row; None becomes NaN, and what is too large for float32 infinite."""
        self._waiting.append(row)
        self.version += 1
        if len(self._waiting) >= _MOST_WAITING:
            self._flush()

    def extend(self, columns: Sequence[Column]) -> None:
        """Many rows, given by columns."""
        self._flush()
        if columns[0].size:
            self._fill(columns)
            self.version += 1

    def _flush(self) -> None:
        if self._waiting:
            rows = np.array(self._waiting, dtype=np.float64)
            self._waiting.clear()
            self._fill(list(rows.T))

    def _fill(self, columns: Sequence[Column]) -> None:
        end = self._filled + columns[0].size
        if end > self._room:
            self._grow(end)
        with np.errstate(over="ignore"):
            for buffer, values in zip(self._buffers, columns, strict=True):
                buffer[self._filled : end] = values
        self._filled = end

    def _grow(self, wanted: int) -> None:
        for place, buffer in enumerate(self._buffers):
            size = buffer.size
            while size < wanted:
                size *= 2
            if size > buffer.size:
                self._buffers[place] = np.empty(size, buffer.dtype)
                self._buffers[place][: self._filled] = buffer[: self._filled]
        self._room = min(buffer.size for buffer in self._buffers)

    def column(self, name: str) -> Column:
        """The values so far, as a view."""
        self._flush()
        return self._buffers[self.columns[name]][: self._filled]

    def last(self, name: str) -> float:
        column = self.column(name)
        return float(column[-1]) if column.size else math.nan

    def cut_after(self, step: float) -> None:
        """Forget the rows after `step`. New buffers: views handed out before stay what they were."""
        kept = int(np.searchsorted(self.column("step"), step, side="right"))
        if kept < self._filled:
            old, self._filled = self._buffers, kept
            self._buffers = [np.empty_like(buffer) for buffer in old]
            for new, buffer in zip(self._buffers, old, strict=True):
                new[:kept] = buffer[:kept]
            self.version += 1
            self.cuts += 1

    def thinned(self, most: int) -> Table:
        """At most so many rows, with the lowest and the highest of neighbours: see `thin`."""
        return finished(self.thinning(most))

    def thinning(self, most: int) -> Slices[Table]:
        """The same in slices of some ms, one column at each `next`."""
        names = [name for name in self.columns if name not in AXES]
        made = Table(names)
        made.each = self.each * max(1, round(self.length / most))
        axes = np.stack([self.column(name) for name in AXES])
        columns: list[Column] = list(thin(axes, axes[:1], most)[0])
        for name in names:
            yield
            columns.append(thin(axes, self.column(name)[None], most)[1][0])
        made.extend(columns)
        return made

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(buffer.itemsize * self.length for buffer in self._buffers)
