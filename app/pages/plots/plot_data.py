"""From a run's measurements to the points, marks and legend of a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.core.metrics.curves import Curve
from app.pages.plots import plot_specs
from app.pages.plots.canvas import Canvas
from app.pages.plots.legend import Entry
from app.pages.plots.plot_specs import Line
from app.texts import tr

if TYPE_CHECKING:
    from app.core.metrics.metric_store import Axis, Marker, MetricStore

_MARKS: Final = 200  # maximum number of one kind
_LEAST: Final = {"gpu_util": 100.0, "cpu": 100.0}


@dataclass(frozen=True, slots=True)
class View:
    """View settings of all plots: axis, range, smoothing and scale."""

    axis: Axis
    low: float
    high: float
    weight: float  # smoothing weight of the past
    clip: bool
    log: bool  # log scale of the loss


def curve(line: Line, view: View) -> Curve | None:
    """The curve of a line."""
    return line.store.curve(line.series, view.weight if line.smoothed else 0.0)


def has_data(lines: Sequence[Line]) -> bool:
    """Whether any line has data."""
    return any(line.store.last_value(line.series) is not None for line in lines)


def paint(canvas: Canvas, name: str, lines: Sequence[Line], view: View) -> None:
    """Show these curves in this view."""
    canvas.set_log(view.log and name == "loss")
    canvas.show_x(view.low, view.high, of_time=view.axis == "time")
    canvas.keep_curves([line.key for line in lines])
    for layer, line in enumerate(lines):
        canvas.put_curve(line.key, line.token, line.look, layer)
    versions = [(line, line.store.version(line.series)) for line in lines]
    content = (view.axis, view.weight, canvas.width() // 256, versions)  # the width decides on the downsampling
    if content != canvas.content:
        canvas.content = content
        _set_data(canvas, lines, view)
    canvas.fit_y(clip=view.clip, zero=plot_specs.begins_at_zero(name), least=_LEAST.get(name))


def _set_data(canvas: Canvas, lines: Sequence[Line], view: View) -> None:
    """Areas are stacked, the first at the bottom."""
    below: Any = 0.0
    for line in lines:
        found = curve(line, view)
        x, y = (found.x(view.axis), found.y) if found is not None else (np.empty(0), np.empty(0))
        if line.look == "area":
            y = below = np.nan_to_num(y) + below
        canvas.show_curve(line.key, x, y if line.scale == 1.0 else y * line.scale)


# --- marks -----------------------------------------------------------------------------------------------


def mark_loss(canvas: Canvas, store: MetricStore, view: View, *, comparing: bool) -> None:
    """Mark checkpoints, bad steps and OOM recoveries on the curve, the best evaluation, and resumes as lines."""
    smooth = store.curve("train_loss", view.weight)
    x, y = (smooth.x(view.axis), smooth.y) if smooth is not None else (np.empty(0), np.empty(0))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]

    def on_curve(marks: list[Marker]) -> tuple[list[float], list[float]]:
        seen = [at for mark in marks if view.low <= (at := mark.x(view.axis)) <= view.high]
        seen = seen[:: 1 + len(seen) // _MARKS]
        return seen, np.interp(seen, x, y).tolist() if x.size else [0.0] * len(seen)

    own = not comparing  # beside overlays, only the best evaluation
    canvas.show_marks("checkpoint", "curve_c", *on_curve(store.checkpoints() if own else []))
    canvas.show_marks("memory", "curve_d", *on_curve(store.oom_recoveries() if own else []))
    canvas.show_marks("bad", "bad", *on_curve(store.bad_steps() if own else []))
    best = store.best_eval()
    at, height = ([best.x(view.axis)], [best.value or 0.0]) if best else ([], [])
    canvas.show_marks("best", "curve_a" if comparing else "curve_b", at, height)
    canvas.show_lines([mark.x(view.axis) for mark in store.resumes() if own])


def mark_heat(canvas: Canvas, store: MetricStore, view: View) -> None:
    """Mark thermal throttling on the curve of each GPU."""
    places: list[float] = []
    heights: list[float] = []
    for gpu in store.gpu_indices():
        x, hot = store.series(f"hot.{gpu}", view.axis)
        first, last = np.searchsorted(x, (view.low, view.high))
        rows = first + np.flatnonzero(hot[first:last] > 0.0)
        rows = rows[:: 1 + rows.size // _MARKS]
        places += x[rows].tolist()
        heights += store.series(f"temperature.{gpu}")[1][rows].tolist()
    canvas.show_marks("hot", "bad", places, heights)


def is_hot(store: MetricStore) -> bool:
    """Whether any GPU was throttled by heat."""
    return any(bool((store.series(f"hot.{gpu}")[1] > 0.0).any()) for gpu in store.gpu_indices())


# --- legend ------------------------------------------------------------------------------------------------


def legend(name: str, lines: Sequence[Line], view: View, at: float | None) -> list[Entry]:
    """The curves with their newest values, or with those at `at`."""
    return [
        Entry(_sign(line), line.token, line.words, line.short, _said(name, line, view, at))
        for line in lines
        if line.in_legend
    ]


def _sign(line: Line) -> str:
    return "dots" if line.key == "eval" and line.look == "line" else line.look


def _said(name: str, line: Line, view: View, at: float | None) -> str:
    found = curve(line, view)
    if found is None:
        return "–"
    value = found.last() if at is None else found.value_at(view.axis, at)
    return plot_specs.text(name, value * line.scale)


def marks_legend(name: str, store: MetricStore, *, comparing: bool) -> list[Entry]:
    """The marks of a plot, if any."""
    if name == "temperature":
        heat = tr("plots.slowed_by_heat")
        short = tr("plots.heat")
        return [Entry("hot", "bad", heat, short)] if is_hot(store) else []
    if name != "loss":
        return []
    if comparing:
        return [Entry("dotted", "muted", tr("plots.eval"))]
    found: list[tuple[Any, str, str, str]] = [
        (True, "best", "curve_b", tr("plots.best_eval")),
        (True, "checkpoint", "curve_c", tr("plots.checkpoint")),
        (store.bad_steps(), "bad", "bad", tr("plots.bad_step")),
        (store.oom_recoveries(), "memory", "curve_d", tr("plots.memory_made_to_fit")),
        (store.resumes(), "restart", "muted", tr("plots.resumed")),
    ]
    return [Entry(sign, token, said) for there, sign, token, said in found if there]
