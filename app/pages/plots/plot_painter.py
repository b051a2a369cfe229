"""Repaints visible plots that changed, a few ms at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer

from app.pages.plots import plot_specs, view_range
from app.pages.plots.chart import Chart
from app.pages.plots.plot_grid import PlotGrid
from app.pages.plots.plot_specs import CurveSpec, Overlay
from app.pages.plots.toolbar import Toolbar
from app.texts import tr
from app.theme.palette import Palette

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.core.metrics.metric_store import MetricStore
    from app.pages.plots.canvas import Canvas
    from app.pages.plots.plot_data import View

_SLICE_S: Final = 0.008  # per turn of the event loop; drawing takes as long again
_MIN_HEIGHT_OF_TWO_ROWS: Final = 130  # pixels; a lower plot has one row of legend


@dataclass(slots=True)
class PlotState:
    """What the plots display, and the visible range."""

    palette: Palette
    store: MetricStore | None = None
    run_name: str = ""
    overlays: list[Overlay] = field(default_factory=list)
    zoom: tuple[float, float] | None = None  # the visible part of the x axis; None: all
    crosshair: tuple[float, str] | None = None  # its position, and the plot with its label

    @property
    def own_name(self) -> str | None:
        """Name of the displayed run with overlays; None if it has no data yet."""
        if self.run_name or (self.store is not None and len(self.store.series("train_loss")[0])):
            return self.run_name or tr("plots.this_run")
        return None

    @property
    def stores(self) -> list[MetricStore]:
        return [*([self.store] if self.store is not None else []), *(run.store for run in self.overlays)]


class PlotPainter(QObject):
    """Paints the charts of a grid. `add_canvas` builds the canvas of a chart."""

    def __init__(
        self, grid: PlotGrid, toolbar: Toolbar, state: PlotState, add_canvas: Callable[[Chart], Canvas]
    ) -> None:
        super().__init__(grid)
        self._grid, self._toolbar, self._state, self._add_canvas = grid, toolbar, state, add_canvas
        self._painted: dict[str, object] = {}
        self._pending: list[Chart] = []  # not painted yet in this frame
        self._timer = QTimer(self, interval=0, singleShot=True)
        self._timer.timeout.connect(self._paint_pending)

    @property
    def is_busy(self) -> bool:
        """Whether charts of this frame are still to be painted."""
        return bool(self._pending)

    def invalidate(self) -> None:
        """Repaint everything next time."""
        self._painted.clear()

    def is_stale(self, name: str, *versions: object) -> bool:
        """Return whether `name` was painted with other versions, and store the new ones."""
        if self._painted.get(name) == versions:
            return False
        self._painted[name] = versions
        return True

    def paint(self) -> None:
        """Paint the visible charts that changed; after 8 ms the rest waits for the next turn of the event loop."""
        self._pending = self._grid.visible_charts() if self._state.store is not None else []
        self._paint_pending()

    def _paint_pending(self) -> None:
        """Paint each chart once per frame, even if the first has changed again."""
        view, deadline = self.view(), time.perf_counter() + _SLICE_S
        while self._pending:
            if self.paint_chart(self._pending.pop(0), view) and time.perf_counter() > deadline:
                break
        if self._pending:
            self._timer.start()

    def view(self) -> View:
        """Return the current view of all plots."""
        from app.pages.plots.plot_data import View

        toolbar = self._toolbar
        full_range = view_range.full_range(self._state.stores, toolbar.axis)
        low, high = self._state.zoom or full_range
        log, clip = toolbar.log_scale.isChecked(), toolbar.clip.isChecked()
        return View(toolbar.axis, low, high, full_range, toolbar.smoothing_weight, clip=clip, log=log)

    def curves(self, name: str) -> list[CurveSpec]:
        """Return the curves of a plot, with run names if there are overlays."""
        state = self._state
        if state.store is None:
            return []
        return plot_specs.curve_specs(name, state.store, state.overlays, state.own_name)

    def paint_chart(self, chart: Chart, view: View) -> bool:
        """Paint a chart if it changed, and return whether it did."""
        from app.pages.plots import plot_data

        store, name = self._state.store, chart.name
        if store is None:
            return False
        comparing, curves = bool(self._state.overlays), self.curves(name)
        versions = [(curve, curve.store.version(curve.series)) for curve in curves]
        markers = store.markers_version() if name == "loss" else ()
        stale = self.is_stale(name, versions, view, markers, chart.width() // 256, id(self._state.palette))
        if stale:
            has_data = plot_data.has_data(curves)
            canvas = chart.canvas or self._add_canvas(chart)
            chart.show_canvas(has_data)
            self.update_texts(chart)
            if has_data:
                plot_data.paint(canvas, name, curves, view)
            if name == "loss":
                plot_data.show_loss_markers(canvas, store, view, comparing=comparing)
            elif name == "temperature":
                plot_data.show_heat_markers(canvas, store, view)
        if self.is_stale(f"{name} legend", self._state.crosshair, self._legend_rows(chart)) or stale:
            self._update_legend(chart, store, curves, view)
            self._update_crosshair(chart, view)
        return stale

    def update_texts(self, chart: Chart) -> None:
        """Set title and placeholder text of a chart."""
        placeholder = tr("plots.no_data_yet")
        if chart.name == "loss" and not self._state.run_name:
            placeholder = tr("plots.empty_page")
        chart.set_texts(plot_specs.title(chart.name, self._state.store), placeholder)

    def _update_legend(self, chart: Chart, store: MetricStore, curves: list[CurveSpec], view: View) -> None:
        from app.pages.plots import plot_data

        name, comparing, crosshair = chart.name, bool(self._state.overlays), self._state.crosshair
        entries = []
        if plot_data.has_data(curves):
            entries = plot_data.curve_entries(name, curves, view, crosshair[0] if crosshair else None)
            entries += plot_data.marker_entries(name, store, comparing=comparing)
        chart.legend.display(
            entries,
            self._state.palette,
            max_rows=self._legend_rows(chart),
            widest_value=plot_specs.get_spec(name).widest_value,
            at_crosshair=crosshair is not None,
            show_names=not any(curve.run for curve in curves),  # names of runs are above all plots
        )

    def _legend_rows(self, chart: Chart) -> int:
        """Return the maximum number of rows of the legend."""
        if chart.name == "time":
            return 3
        return 2 if chart.name == "loss" or chart.height() >= _MIN_HEIGHT_OF_TWO_ROWS else 1

    def _update_crosshair(self, chart: Chart, view: View) -> None:
        if chart.canvas is None:
            return
        if self._state.crosshair is None:
            chart.canvas.show_crosshair(None)
        else:
            x, labelled = self._state.crosshair
            label = view_range.format_position(view.axis, x) if labelled == chart.name else ""
            chart.canvas.show_crosshair(x, label)
