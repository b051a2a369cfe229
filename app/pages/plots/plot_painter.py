"""Repaints visible plots that changed, a few ms at a time."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer

from app.pages.plots import plot_specs
from app.pages.plots.chart import Chart
from app.pages.plots.legend import LegendEntry
from app.pages.plots.plot_grid import PlotGrid
from app.pages.plots.plot_specs import CurveSpec, Overlay
from app.pages.plots.toolbar import Toolbar
from app.texts import tr
from app.theme.palette import Palette
from app.widgets import formatting

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.core.metrics.metric_store import MetricStore
    from app.core.metrics.metric_table import Array, XAxis
    from app.pages.plots.canvas import Canvas

_SLICE_S: Final = 0.008  # per turn of the event loop; drawing takes as long again
_LEGEND_ROW_FRACTION: Final = 60  # pixels of a plot for each row of its legend
_MAX_LEGEND_ROWS: Final = 3
_MAX_START_INTERVALS: Final = 3  # a first measurement further from 0: the run did not start at 0


@dataclass(frozen=True, slots=True)
class View:
    """View settings of all plots: axis, range, smoothing and scale."""

    axis: XAxis
    low: float
    high: float
    full_range: tuple[float, float]
    smoothing: float  # weight of the past
    clip: bool
    log: bool  # log scale of the loss

    def smoothing_of(self, curve: CurveSpec) -> float:
        return self.smoothing if curve.smoothed else 0.0

    def points(self, curve: CurveSpec) -> tuple[Array, Array]:
        return curve.store.series(curve.series, self.axis, self.smoothing_of(curve))


class PlotPainter(QObject):
    """Holds what the plots display, and paints the charts of a grid. `add_canvas` builds the canvas of a chart."""

    def __init__(
        self, grid: PlotGrid, toolbar: Toolbar, palette: Palette, add_canvas: Callable[[Chart], Canvas]
    ) -> None:
        super().__init__(grid)
        self._grid, self._toolbar, self._add_canvas = grid, toolbar, add_canvas
        self.palette = palette
        self.store: MetricStore | None = None
        self.run_name = ""
        self.overlays: list[Overlay] = []
        self.zoom: tuple[float, float] | None = None  # the visible part of the x axis; None: all
        self.y_zooms: dict[str, tuple[float, float]] = {}  # by plot; a plot without one fits its visible points
        self._hidden: defaultdict[str, set[str]] = defaultdict(set)  # keys of legend entries by plot; "": in all plots
        self.crosshair: tuple[float, str] | None = None  # its position, and the plot with its label
        self._painted: dict[str, object] = {}
        self._pending: list[Chart] = []  # not painted yet in this frame
        self._timer = QTimer(self, interval=0, singleShot=True)
        self._timer.timeout.connect(self._paint_pending)

    @property
    def own_name(self) -> str | None:
        """Name of the displayed run with overlays; None if it has no data yet."""
        if self.run_name or (self.store is not None and len(self.store.series("train_loss")[0])):
            return self.run_name or tr("plots.this_run")
        return None

    @property
    def is_busy(self) -> bool:
        """Whether charts of this frame are still to be painted."""
        return bool(self._pending)

    def invalidate(self) -> None:
        """Repaint everything next time."""
        self._painted.clear()

    def paint(self) -> None:
        """Paint the visible charts that changed; after 8 ms the rest waits for the next turn of the event loop."""
        self._pending = self._grid.visible_charts() if self.store is not None else []
        self._paint_pending()

    def _paint_pending(self) -> None:
        """Paint each chart once per frame, even if the first has changed again."""
        view, deadline = self.view(), time.perf_counter() + _SLICE_S
        while self._pending:
            if self.paint_chart(self._pending.pop(0), view) and time.perf_counter() > deadline:
                break
        if self._pending:
            self._timer.start()

    # --- visible range ---------------------------------------------------------------------------------

    def view(self) -> View:
        """Return the current view of all plots."""
        toolbar = self._toolbar
        full_range = self._full_range(toolbar.axis)
        low, high = self.zoom or full_range
        log, clip = toolbar.log_scale.isChecked(), toolbar.clip.isChecked()
        return View(toolbar.axis, low, high, full_range, toolbar.smoothing_weight, clip=clip, log=log)

    def _full_range(self, axis: XAxis) -> tuple[float, float]:
        """Return the range that shows all of the runs, from 0 or from where they branched off. The end is rounded up,
        so that the range stays constant for a while as a run grows."""
        stores = [*([self.store] if self.store is not None else []), *(run.store for run in self.overlays)]
        ends = [store.series(name, axis)[0][-1:] for store in stores for name in ("train_loss", "eval_loss", "rss")]
        end = max((float(x[0]) for x in ends if len(x)), default=0.0)
        if end <= 0.0:
            return 0.0, 1.0
        unit = 5 * 10.0 ** (math.floor(math.log10(end)) - 2)
        return min(_start(store, axis) for store in stores), math.ceil(1.01 * end / unit) * unit

    # --- charts ---------------------------------------------------------------------------------------------

    def curves(self, name: str) -> list[CurveSpec]:
        """Return the curves of a plot, with run names if there are overlays."""
        if self.store is None:
            return []
        curves = plot_specs.curve_specs(name, self.store, self.overlays, self.own_name)
        return [curve for curve in curves if curve.style != "faint" or self._toolbar.smoothing_weight]

    def update_texts(self, chart: Chart) -> None:
        """Set title and placeholder text of a chart."""
        is_first = chart.name == "loss" and not self.run_name
        chart.set_texts(
            plot_specs.title(chart.name, self.store), tr("plots.empty_page" if is_first else "plots.no_data_yet")
        )

    def paint_chart(self, chart: Chart, view: View) -> bool:
        """Paint a chart if it changed, and return whether it did."""
        if self.store is None:
            return False
        name, curves = chart.name, self.curves(chart.name)
        versions = [(curve, curve.store.version(curve.series)) for curve in curves]
        is_stale = self._is_stale(name, versions, view, self.y_zooms.get(name), self.store.markers_version())
        if is_stale:
            has_data, canvas = plot_specs.has_values(curves), chart.canvas or self._add_canvas(chart)
            chart.show_canvas(has_data)
            self.update_texts(chart)
            if has_data:
                self._paint_canvas(canvas, name, self.store, curves, view)
        if self._is_stale(f"{name} legend", self.crosshair, chart.size()) or is_stale:
            self.update_legend(chart)
            if chart.canvas is not None:
                x, label = (None, "") if self.crosshair is None else (self.crosshair[0], self._crosshair_label(chart))
                chart.canvas.show_crosshair(x, label)
        return is_stale

    def _is_stale(self, name: str, *versions: object) -> bool:
        """Return whether `name` was painted with other versions, and store the new ones."""
        if self._painted.get(name) == versions:
            return False
        self._painted[name] = versions
        return True

    def _paint_canvas(self, canvas: Canvas, name: str, store: MetricStore, curves: list[CurveSpec], view: View) -> None:
        spec = plot_specs.get_spec(name)
        canvas.set_log(view.log and name == "loss")
        canvas.set_x_range(view.low, view.high, view.full_range, is_time=view.axis == "time")
        points = []
        for curve in curves:
            if not self.is_hidden(name, curve.entry_key, plot_specs.run_key(curve.run)):
                version = (curve.store, curve.store.version(curve.series), view.axis, view.smoothing_of(curve))
                x, y = view.points(curve)
                points.append((curve.key, version, x, y if spec.scale == 1.0 else spec.scale * y))
        canvas.set_curves(points)
        zoom = self.y_zooms.get(name)
        canvas.set_y_range(zoom, clip=view.clip, from_zero=spec.from_zero, minimum_top=spec.minimum_top)
        for kind, color, _, entry in spec.markers:
            x, y = store.marker_points(kind, view.axis, view.smoothing)
            is_hidden = bool(self.overlays) or self.is_hidden(name, kind, entry)
            canvas.show_markers(kind, color, *((x[:0], y[:0]) if is_hidden else (x, y)))

    def _crosshair_label(self, chart: Chart) -> str:
        if self.crosshair is None or self.crosshair[1] != chart.name:
            return ""
        x = max(0.0, self.crosshair[0])
        match self._toolbar.axis:
            case "step":
                return tr("common.step_lower", step=formatting.format_count(x))
            case "tokens":
                return tr("plots.count_tokens", count=formatting.format_large_number(x))
        return formatting.format_duration(x)

    # --- legend ---------------------------------------------------------------------------------------------

    def is_hidden(self, name: str, *entries: str) -> bool:
        """Return whether one of these legend entries is hidden in a plot."""
        return not (self._hidden[name] | self._hidden[""]).isdisjoint(entries)

    def toggle(self, name: str, entries: set[str], toggled: str, *, alone: bool) -> None:
        """Show or hide a legend entry of a plot, or of all plots (""). `alone`: show only this one, or all again."""
        shown = {entry for entry in entries if not self.is_hidden(name, entry)}
        shown = (entries if shown == {toggled} else {toggled}) if alone else shown ^ {toggled}
        self._hidden[""] -= shown
        self._hidden[name] -= shown
        self._hidden[name] |= entries - shown - self._hidden[""]
        self.invalidate()

    def update_legend(self, chart: Chart, *, for_picture: bool = False) -> None:
        """Show the newest values, or those at the crosshair. Names of runs are above all plots, but in a picture."""
        curves = self.curves(chart.name)
        entries = self._legend_entries(chart.name, curves) if plot_specs.has_values(curves) else []
        rows = min(_MAX_LEGEND_ROWS, chart.height() // _LEGEND_ROW_FRACTION)
        chart.legend.display(
            [entry for entry in entries if not (for_picture and entry.is_hidden)],
            self.palette,
            max_rows=len(curves) if for_picture else max(1, rows),
            at_crosshair=self.crosshair is not None,
            show_names=for_picture or not any(curve.run for curve in curves),
        )

    def _legend_entries(self, name: str, curves: list[CurveSpec]) -> list[LegendEntry]:
        entries, view = dict[str, LegendEntry](), self.view()
        for curve in curves:
            key, label = curve.entry_key, curve.run or curve.label
            if key in entries or curve.style == "faint":
                continue
            if curve.run and curve.style == "dotted":  # in the colors of all runs
                entries[key] = LegendEntry("dotted", "muted", curve.label, None, key, self.is_hidden(name, key))
            else:
                symbol = "dots" if (curve.series, curve.style) == ("eval_loss", "line") else curve.style
                text, key = self._format_value(name, curve, view), key if label else ""
                entries[key] = LegendEntry(symbol, curve.color, label, text, key, self.is_hidden(name, key))
        if self.store is not None and not self.overlays:
            for kind, color, text, _ in plot_specs.get_spec(name).markers:
                if len(self.store.marker_points(kind, view.axis)[0]):
                    entries[kind] = LegendEntry(kind, color, tr(text), None, kind, self.is_hidden(name, kind))
        return [*entries.values()]

    def _format_value(self, name: str, curve: CurveSpec, view: View) -> str:
        """Return the newest value, or the one at the crosshair."""
        spec = plot_specs.get_spec(name)
        if self.crosshair is None:
            value = curve.store.last_value(curve.series, view.smoothing_of(curve))
        else:
            value = curve.store.value_at(curve.series, view.axis, self.crosshair[0], view.smoothing_of(curve))
        return "–" if value is None else spec.format_value(spec.scale * value)


def _start(store: MetricStore, axis: XAxis) -> float:
    """Return the start of a run: 0, unless it was branched off at a later step."""
    x, _ = store.series("train_loss", axis)
    if axis == "time" or len(x) < 2:
        return 0.0
    first, interval = float(x[0]), float(x[1] - x[0])
    return max(0.0, first - interval) if first > _MAX_START_INTERVALS * interval else 0.0
