"""The visible range of the x axis, the crosshair position, and their texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from app.texts import tr
from app.widgets import formatting

if TYPE_CHECKING:
    from app.core.metrics.metric_store import Axis, MetricStore
    from app.pages.plots.plot_specs import Line

_ZOOM: Final = 1.5
_FAR: Final = 3  # a first measurement at more than 3 intervals from 0: the run did not start at 0
_STEPS: Final = 200  # of the crosshair across the plot


@dataclass(frozen=True, slots=True)
class Looking:
    """The range of the x axis, and the position of the crosshair."""

    low: float
    high: float
    cross: float | None


def whole(stores: Sequence[MetricStore], axis: Axis) -> tuple[float, float]:
    """The range that shows all of the runs, from 0 or from where they branched off. The end is rounded up, so that the
    range stays constant for a while as a run grows."""
    ends = [store.series(name, axis)[0][-1:] for store in stores for name in ("train_loss", "eval_loss", "rss")]
    end = max((float(x[0]) for x in ends if len(x)), default=0.0)
    if end <= 0.0:
        return 0.0, 1.0
    unit = 5 * 10.0 ** (math.floor(math.log10(end)) - 2)
    return min(_begin(store, axis) for store in stores), math.ceil(1.01 * end / unit) * unit


def _begin(store: MetricStore, axis: Axis) -> float:
    """The start of a run: 0, unless it was branched off at a later step."""
    x, _ = store.series("train_loss", axis)
    if axis == "time" or len(x) < 2:
        return 0.0
    first, distance = float(x[0]), float(x[1] - x[0])
    return max(0.0, first - distance) if first > _FAR * distance else 0.0


def moved(now: Looking, key: str, extent: tuple[float, float]) -> Looking:
    """The view after a key (see `canvas`): move the crosshair, zoom or pan within `extent`."""
    begin, end = extent
    width = now.high - now.low
    middle = (now.low + now.high) / 2 if now.cross is None else now.cross
    match key:
        case "left" | "right" | "far_left" | "far_right":
            step = width / _STEPS * (10 if key.startswith("far") else 1)
            place = middle + (step if key.endswith("right") else -step)
            return replace(now, cross=min(max(place, now.low), now.high))
        case "begin" | "end":
            return replace(now, cross=now.low if key == "begin" else min(now.high, end))
        case "in":
            low, high = middle - (middle - now.low) / _ZOOM, middle + (now.high - middle) / _ZOOM
        case "out":
            low, high = middle - (middle - now.low) * _ZOOM, middle + (now.high - middle) * _ZOOM
        case "pan_left" | "pan_right":
            by = width / 10 if key == "pan_right" else -width / 10
            by = min(max(by, begin - now.low), max(0.0, end - now.high))
            low, high = now.low + by, now.high + by
        case _:
            low, high = begin, end
    return replace(now, low=max(begin, low), high=min(end, high))


def place(axis: Axis, x: float) -> str:
    """The crosshair position as text."""
    if axis == "step":
        return tr("common.step_step", step=formatting.format_count(x))
    if axis == "tokens":
        return tr("plots.count_tokens", count=formatting.format_large_number(max(0.0, x)))
    return formatting.format_duration(max(0.0, x))


def column_title(plot: str, line: Line, weight: float) -> str:
    """The title of a CSV column: the plot with its unit, and the curve."""
    named = f"{plot}: {line.words}" if line.words and not line.run else plot
    if line.smoothed and weight > 0.0:
        smoothed = tr("plots.curve_smoothed_weight")
        return smoothed.format(curve=named, weight=f"{weight:.2f}")
    return named
