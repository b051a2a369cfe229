"""Min-max downsampling: each bucket of neighbouring points is reduced to its minimum and maximum."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_ROWS: Final = 16_384
"""8,192 buckets of two points: twice the pixels of the widest screen, which leaves room to zoom."""


def downsample_minmax(axes: Array, values: Array, limit: int = MAX_ROWS) -> tuple[Array, Array]:
    """Reduces axes (a, n) and values (v, n) to (a, m) and (v, m) with m <= `limit`.

    A bucket keeps its first and last position on the axes, and the minimum and maximum of each series in the order in
    which the series rises or falls. NaN is ignored; a bucket of NaN only stays NaN. Up to `limit` points are returned
    unchanged.
    """
    count = axes.shape[1]
    if count <= limit:
        return axes, values
    size = -(-count // (limit // 2))
    first = np.arange(0, count, size)
    last = np.minimum(first + size, count) - 1
    low, high = np.fmin.reduceat(values, first, axis=1), np.fmax.reduceat(values, first, axis=1)
    falls = values[:, first] > values[:, last]
    places = _interleave(axes[:, first], axes[:, last])
    found = _interleave(np.where(falls, high, low), np.where(falls, low, high))
    end = found.shape[1] - (first[-1] == last[-1])  # a bucket of one point has no second position
    return places[:, :end], found[:, :end]


def _interleave(ones: Array, others: Array) -> Array:
    """Interleaves two arrays (k, m) to (k, 2 m)."""
    return np.stack((ones, others), axis=2).reshape(len(ones), -1)
