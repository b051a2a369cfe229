"""The visible range of the x axis, and the crosshair position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from app.texts import tr
from app.widgets import formatting

if TYPE_CHECKING:
    from app.core.metrics.metric_store import Axis, MetricStore

_MAX_START_INTERVALS: Final = 3  # a first measurement further from 0: the run did not start at 0


def full_range(stores: Sequence[MetricStore], axis: Axis) -> tuple[float, float]:
    """Return the range that shows all of the runs, from 0 or from where they branched off. The end is rounded up, so
    that the range stays constant for a while as a run grows."""
    ends = [store.series(name, axis)[0][-1:] for store in stores for name in ("train_loss", "eval_loss", "rss")]
    end = max((float(x[0]) for x in ends if len(x)), default=0.0)
    if end <= 0.0:
        return 0.0, 1.0
    unit = 5 * 10.0 ** (math.floor(math.log10(end)) - 2)
    return min(_start(store, axis) for store in stores), math.ceil(1.01 * end / unit) * unit


def _start(store: MetricStore, axis: Axis) -> float:
    """Return the start of a run: 0, unless it was branched off at a later step."""
    x, _ = store.series("train_loss", axis)
    if axis == "time" or len(x) < 2:
        return 0.0
    first, interval = float(x[0]), float(x[1] - x[0])
    return max(0.0, first - interval) if first > _MAX_START_INTERVALS * interval else 0.0


def format_position(axis: Axis, x: float) -> str:
    """Return the crosshair position as text."""
    if axis == "step":
        return tr("common.step_lower", step=formatting.format_count(x))
    if axis == "tokens":
        return tr("plots.count_tokens", count=formatting.format_large_number(max(0.0, x)))
    return formatting.format_duration(max(0.0, x))
