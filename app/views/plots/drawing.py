"""From a run's measurements to what a plot shows of them: points, marks, legend. Only what is seen is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PySide6.QtCore import QCoreApplication

from app.state.measurements.curves import Curve, stacked
from app.views.plots import contents
from app.views.plots.canvas import Canvas
from app.views.plots.contents import Line
from app.views.plots.legend import Entry

if TYPE_CHECKING:
    from app.state.measurements.metrics import Axis, Marker, MetricStore

_MARKS: Final = 200  # of one kind at most: more would be a band
_LEAST: Final = {"gpu_util": 100.0, "cpu": 100.0}


@dataclass(frozen=True, slots=True)
class View:
    """How one looks at all plots: which part of which axis, how smooth, and with how much of what stands out."""

    axis: Axis
    low: float
    high: float
    weight: float  # of the past in smoothed curves
    clip: bool
    log: bool  # of the loss


def curve(line: Line, view: View) -> Curve | None:
    """The curve that a line shows."""
    return line.store.curve(line.series, view.weight if line.smoothed else 0.0)


def has_data(lines: Sequence[Line]) -> bool:
    """Whether there is anything to show."""
    return any(line.store.last(line.series) is not None for line in lines)


def paint(canvas: Canvas, name: str, lines: Sequence[Line], view: View) -> None:
    """Show these curves as one looks at them now."""
    canvas.set_log(view.log and name == "loss")
    canvas.show_x(view.low, view.high, of_time=view.axis == "time")
    canvas.keep_curves([line.key for line in lines])
    for layer, line in enumerate(lines):
        canvas.put_curve(line.key, line.token, line.look, layer)
    if lines and lines[0].look == "area":
        paint_areas(canvas, lines, view)
    else:
        most = points(canvas, len(lines))
        for line in lines:
            found = curve(line, view)
            x, y = found.between(view.axis, view.low, view.high, most) if found else (np.empty(0), np.empty(0))
            canvas.show_curve(line.key, x, y if line.scale == 1.0 else y * line.scale)
    canvas.fit_y(clip=view.clip, zero=contents.begins_at_zero(name), least=_LEAST.get(name))


def paint_areas(canvas: Canvas, lines: Sequence[Line], view: View) -> None:
    """On top of one another, the first at the bottom."""
    curves = [found for line in lines if (found := curve(line, view)) is not None]
    x, edges = stacked(curves, view.axis, view.low, view.high, points(canvas, 2))
    for line, height in zip(lines, edges, strict=False):
        canvas.show_curve(line.key, x, height)


def points(canvas: Canvas, curves: int = 1) -> int:
    """How many points of each of so many curves are worth drawing: four for a pixel of three curves, of many curves
    one. In steps of width, so that few sizes differ."""
    return 256 * (1 + int(canvas.width()) // 256) * max(1, 12 // max(3, curves))


# --- marks -----------------------------------------------------------------------------------------------


def mark_loss(canvas: Canvas, store: MetricStore, view: View, *, comparing: bool) -> None:
    """Checkpoints, bad steps and moves of memory on the curve, the best evaluation, lines where it was gone on with."""
    smooth = store.curve("train_loss", view.weight)

    def on_curve(marks: list[Marker]) -> tuple[list[float], list[float]]:
        seen = [x for mark in marks if view.low <= (x := mark.x(view.axis)) <= view.high]
        seen = seen[:: 1 + len(seen) // _MARKS]
        return seen, [_height(smooth, view.axis, x) for x in seen]

    own = not comparing  # beside other runs, only where it was best
    canvas.show_marks("checkpoint", "curve_c", *on_curve(store.checkpoints() if own else []))
    canvas.show_marks("memory", "curve_d", *on_curve(store.memory_moves() if own else []))
    canvas.show_marks("bad", "bad", *on_curve(store.bad_steps() if own else []))
    best = store.best_eval()
    at, height = ([best.x(view.axis)], [best.value or 0.0]) if best else ([], [])
    canvas.show_marks("best", "curve_a" if comparing else "curve_b", at, height)
    canvas.show_lines([mark.x(view.axis) for mark in store.restarts() if own])


def _height(curve: Curve | None, axis: str, x: float) -> float:
    """Where a mark sits on a curve: one that lies beside it, at its end."""
    if curve is None or not curve.y.size:
        return 0.0
    ends = curve.x(axis)
    return curve.at(axis, min(max(x, float(ends[0])), float(ends[-1])))


def mark_heat(canvas: Canvas, store: MetricStore, view: View) -> None:
    """Where clocks were held back by heat, on the curve of each GPU."""
    places: list[float] = []
    heights: list[float] = []
    for gpu in store.gpus():
        x, hot = store.series(f"hot.{gpu}", view.axis)
        first, last = np.searchsorted(x, (view.low, view.high))
        rows = first + np.flatnonzero(hot[first:last] > 0.0)
        rows = rows[:: 1 + rows.size // _MARKS]
        places += x[rows].tolist()
        heights += store.series(f"temperature.{gpu}")[1][rows].tolist()
    canvas.show_marks("hot", "bad", places, heights)


def is_hot(store: MetricStore) -> bool:
    """Whether heat ever held a clock back."""
    return any(bool((store.series(f"hot.{gpu}")[1] > 0.0).any()) for gpu in store.gpus())


# --- legend ------------------------------------------------------------------------------------------------


def legend(name: str, lines: Sequence[Line], view: View, at: float | None) -> list[Entry]:
    """The curves with their newest values, or with those at a place of the axis."""
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
    value = found.last() if at is None else found.at(view.axis, at)
    return contents.text(name, value * line.scale)


def marks_legend(name: str, store: MetricStore, *, comparing: bool) -> list[Entry]:
    """The marks of a plot, where there are any."""
    if name == "temperature":
        heat = QCoreApplication.translate("Plots", "slowed by heat")
        short = QCoreApplication.translate("Plots", "heat")
        return [Entry("hot", "bad", heat, short)] if is_hot(store) else []
    if name != "loss":
        return []
    if comparing:
        return [Entry("dotted", "muted", QCoreApplication.translate("Plots", "eval"))]
    found: list[tuple[Any, str, str, str]] = [
        (True, "best", "curve_b", QCoreApplication.translate("Plots", "best eval")),
        (True, "checkpoint", "curve_c", QCoreApplication.translate("Plots", "checkpoint")),
        (store.bad_steps(), "bad", "bad", QCoreApplication.translate("Plots", "bad step")),
        (store.memory_moves(), "memory", "curve_d", QCoreApplication.translate("Plots", "memory made to fit")),
        (store.restarts(), "restart", "muted", QCoreApplication.translate("Plots", "resumed")),
    ]
    return [Entry(sign, token, said) for there, sign, token, said in found if there]
