"""From a run's measurements to the points, markers and legend of a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.core.metrics.curves import Curve
from app.pages.plots import plot_specs
from app.pages.plots.canvas import Canvas
from app.pages.plots.legend import LegendEntry
from app.pages.plots.plot_specs import CurveSpec
from app.texts import tr

if TYPE_CHECKING:
    from app.core.metrics.metric_store import Axis, Marker, MetricStore

_MAX_MARKERS: Final = 200  # of one kind


@dataclass(frozen=True, slots=True)
class View:
    """View settings of all plots: axis, range, smoothing and scale."""

    axis: Axis
    low: float
    high: float
    full_range: tuple[float, float]
    smoothing: float = 0.0  # weight of the past
    clip: bool = False
    log: bool = False  # log scale of the loss


def find_curve(spec: CurveSpec, view: View) -> Curve | None:
    """Return the smoothed or raw series of a curve."""
    return spec.store.curve(spec.series, view.smoothing if spec.smoothed else 0.0)


def has_data(curves: Sequence[CurveSpec]) -> bool:
    """Return whether any curve has data."""
    return any(curve.store.last_value(curve.series) is not None for curve in curves)


def paint(canvas: Canvas, name: str, curves: Sequence[CurveSpec], view: View) -> None:
    """Show curves in a view."""
    canvas.set_log(view.log and name == "loss")
    canvas.full_range = view.full_range
    canvas.set_x_range(view.low, view.high, is_time=view.axis == "time")
    canvas.set_curves([curve.key for curve in curves])
    _set_points(canvas, name, curves, view)
    spec = plot_specs.get_spec(name)
    canvas.fit_y(clip=view.clip, from_zero=spec.from_zero, minimum_top=spec.minimum_top)


def _set_points(canvas: Canvas, name: str, curves: Sequence[CurveSpec], view: View) -> None:
    """Areas are stacked, the first at the bottom."""
    scale, below = plot_specs.get_spec(name).scale, np.zeros(1)
    for spec in curves:
        curve = find_curve(spec, view)
        x, y = (curve.x(view.axis), curve.y) if curve is not None else (np.empty(0), np.empty(0))
        if spec.style == "area":
            y = below = np.nan_to_num(y) + below
        canvas.set_points(spec.key, x, y if scale == 1.0 else y * scale)


# --- markers ---------------------------------------------------------------------------------------------


def show_loss_markers(canvas: Canvas, store: MetricStore, view: View, *, comparing: bool) -> None:
    """Mark checkpoints, bad steps and OOM recoveries on the curve, the best evaluation, and resumes as lines. With
    overlays, mark only the best evaluation."""
    curve = store.curve("train_loss", view.smoothing)
    x, y = (curve.x(view.axis), curve.y) if curve is not None else (np.empty(0), np.empty(0))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]

    def on_curve(markers: list[Marker]) -> tuple[list[float], list[float]]:
        visible = [at for marker in markers if view.low <= (at := marker.x(view.axis)) <= view.high]
        visible = visible[:: 1 + len(visible) // _MAX_MARKERS]
        return visible, np.interp(visible, x, y).tolist() if x.size else [0.0] * len(visible)

    canvas.show_markers("checkpoint", "curve_c", *on_curve([] if comparing else store.checkpoints()))
    canvas.show_markers("memory", "curve_d", *on_curve([] if comparing else store.oom_recoveries()))
    canvas.show_markers("bad", "bad", *on_curve([] if comparing else store.bad_steps()))
    best = store.best_eval()
    position = ([best.x(view.axis)], [best.value or 0.0]) if best else ([], [])
    canvas.show_markers("best", "curve_a" if comparing else "curve_b", *position)
    canvas.show_lines([] if comparing else [marker.x(view.axis) for marker in store.resumes()])


def show_heat_markers(canvas: Canvas, store: MetricStore, view: View) -> None:
    """Mark thermal throttling on the curve of each GPU."""
    positions: list[float] = []
    heights: list[float] = []
    for gpu in store.gpu_indices():
        x, hot = store.series(f"hot.{gpu}", view.axis)
        first, last = np.searchsorted(x, (view.low, view.high))
        rows = first + np.flatnonzero(hot[first:last] > 0.0)
        rows = rows[:: 1 + rows.size // _MAX_MARKERS]
        positions += x[rows].tolist()
        heights += store.series(f"temperature.{gpu}")[1][rows].tolist()
    canvas.show_markers("hot", "bad", positions, heights)


# --- legend ------------------------------------------------------------------------------------------------


def curve_entries(name: str, curves: Sequence[CurveSpec], view: View, at: float | None) -> list[LegendEntry]:
    """Return legend entries with the newest values, or with those at the position `at`."""
    scale, entries = plot_specs.get_spec(name).scale, []
    for spec in curves:
        if spec.in_legend:
            symbol = "dots" if spec.series == "eval_loss" and spec.style == "line" else spec.style
            value, curve = "–", find_curve(spec, view)
            if curve is not None:
                number = curve.last() if at is None else curve.value_at(view.axis, at)
                value = plot_specs.format_value(name, number * scale)
            entries.append(LegendEntry(symbol, spec.color, spec.label, spec.short_label, value))
    return entries


def marker_entries(name: str, store: MetricStore, *, comparing: bool) -> list[LegendEntry]:
    """Return legend entries of the markers of a plot."""
    if name == "temperature":
        hot = any(bool((store.series(f"hot.{gpu}")[1] > 0.0).any()) for gpu in store.gpu_indices())
        return [LegendEntry("hot", "bad", tr("plots.thermal_throttling"), tr("plots.thermal"))] if hot else []
    if name != "loss":
        return []
    if comparing:
        return [LegendEntry("dotted", "muted", tr("plots.eval"))]
    entries: list[tuple[Any, str, str, str]] = [
        (True, "best", "curve_b", "plots.best_eval"),
        (True, "checkpoint", "curve_c", "plots.checkpoint"),
        (store.bad_steps(), "bad", "bad", "plots.bad_step"),
        (store.oom_recoveries(), "memory", "curve_d", "plots.oom_recovery"),
        (store.resumes(), "resume", "muted", "plots.resumed"),
    ]
    return [LegendEntry(symbol, color, tr(key)) for present, symbol, color, key in entries if present]
