"""Long series as a screen can show them: of each bucket of neighbouring points the lowest and the highest."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ROWS: Final = 16_384
"""Two for each of 8,192 buckets: twice the pixels of the widest screen, so that there is something to zoom into."""


def thin(axes: Array, values: Array, limit: int = ROWS) -> tuple[Array, Array]:
    """At most `limit` columns in place of many: axes (a, n) and values (v, n) to (a, m) and (v, m).

    A bucket keeps its first and last place on the axes, and of each series its lowest and its highest value, in the
    order in which the series goes there: no extreme is lost, and a curve that only falls still does. NaN is passed
    over; a bucket without a number stays NaN. Few points are returned as they are.
    """
    count = axes.shape[1]
    if count <= limit:
        return axes, values
    size = -(-count // (limit // 2))
    first = np.arange(0, count, size)
    last = np.minimum(first + size, count) - 1
    low, high = np.fmin.reduceat(values, first, axis=1), np.fmax.reduceat(values, first, axis=1)
    falls = values[:, first] > values[:, last]
    places = _pairs(axes[:, first], axes[:, last])
    found = _pairs(np.where(falls, high, low), np.where(falls, low, high))
    end = found.shape[1] - (first[-1] == last[-1])  # one point alone needs no second place
    return places[:, :end], found[:, :end]


def _pairs(ones: Array, others: Array) -> Array:
    """Of each bucket the one, then the other: (k, m) twice to (k, 2 m)."""
    return np.stack((ones, others), axis=2).reshape(len(ones), -1)
