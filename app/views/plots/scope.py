"""Which part of the x axis one looks at, where values are read there, and how that is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication

from app.views import words

if TYPE_CHECKING:
    from app.state.measurements.metrics import Axis, MetricStore
    from app.views.plots.contents import Line

_ZOOM: Final = 1.5
_FAR: Final = 3  # distances of measurements between 0 and the first of a run that did not begin there
_STEPS: Final = 200  # of the crosshair, from one side to the other


@dataclass(frozen=True, slots=True)
class Looking:
    """From `low` to `high` on the x axis; `cross`: where values are read."""

    low: float
    high: float
    cross: float | None


def whole(stores: Sequence[MetricStore], axis: Axis) -> tuple[float, float]:
    """From where to where the axis reaches when all is shown: from 0, or where the runs branched off others; a little
    further than they are, and the same for a while, so that curves stand still while a run grows."""
    ends = [store.series(name, axis)[0][-1:] for store in stores for name in ("train_loss", "eval_loss", "rss")]
    end = max((float(x[0]) for x in ends if len(x)), default=0.0)
    if end <= 0.0:
        return 0.0, 1.0
    unit = 5 * 10.0 ** (math.floor(math.log10(end)) - 2)
    return min(_begin(store, axis) for store in stores), math.ceil(1.01 * end / unit) * unit


def _begin(store: MetricStore, axis: Axis) -> float:
    """Where a run began: not at 0 where its first measurement is far from there and the next one is near."""
    x, _ = store.series("train_loss", axis)
    if axis == "time" or len(x) < 2:
        return 0.0
    first, distance = float(x[0]), float(x[1] - x[0])
    return max(0.0, first - distance) if first > _FAR * distance else 0.0


def moved(now: Looking, key: str, extent: tuple[float, float]) -> Looking:
    """What a key does (see `canvas`): read one place further, zoom, move; nothing beyond `extent`."""
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
    """Where values are read, in words."""
    if axis == "step":
        return QCoreApplication.translate("Plots", "step {step}").format(step=words.count(x))
    if axis == "tokens":
        return QCoreApplication.translate("Plots", "{count} tokens").format(count=words.big(max(0.0, x)))
    return words.duration(max(0.0, x))


def column_title(plot: str, line: Line, weight: float) -> str:
    """The head of a curve's column in a table: what it is, and in which unit."""
    named = f"{plot}: {line.words}" if line.words and not line.run else plot
    if line.smoothed and weight > 0.0:
        smoothed = QCoreApplication.translate("Plots", "{curve}, smoothed {weight}")
        return smoothed.format(curve=named, weight=f"{weight:.2f}")
    return named
