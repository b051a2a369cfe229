"""Repaints visible plots that changed, a few ms at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer

from app.pages.plots import plot_specs, view_range
from app.pages.plots.chart import Chart
from app.pages.plots.overlays import Overlay
from app.pages.plots.plot_grid import Board
from app.pages.plots.toolbar import Controls
from app.theme.palette import Palette

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.core.metrics.metric_store import MetricStore
    from app.pages.plots.canvas import Canvas
    from app.pages.plots.plot_data import View

_BUDGET_S: Final = 0.008  # per turn of the event loop; drawing takes as long again
_TALL: Final = 130  # pixels; a plot of this height has two rows of legend


@dataclass(slots=True)
class Shown:
    """What the plots show, and the visible range."""

    tokens: Palette
    store: MetricStore | None = None
    name: str = ""  # of the run on show
    runs: list[Overlay] = field(default_factory=list)
    zoom: tuple[float, float] | None = None  # the visible part of the x axis; None: all
    cross: tuple[float, str] | None = None  # position of the crosshair, and the plot with its label

    @property
    def own(self) -> str | None:
        """The name of the run on show beside overlays; None if it has no data yet."""
        if self.name or (self.store is not None and len(self.store.series("train_loss")[0])):
            return self.name or plot_specs.this_run()
        return None

    @property
    def stores(self) -> list[MetricStore]:
        return [*([self.store] if self.store is not None else []), *(run.store for run in self.runs)]


class Painter(QObject):
    """Paints the charts of a board. `prepare` builds the canvas of a chart; `word` sets its title."""

    def __init__(
        self,
        board: Board,
        controls: Controls,
        shown: Shown,
        *,
        prepare: Callable[[Chart], Canvas],
        word: Callable[[Chart], None],
    ) -> None:
        super().__init__(board)
        self._board, self._controls, self._shown = board, controls, shown
        self._prepare, self._word = prepare, word
        self._painted: dict[str, object] = {}
        self._rest: list[Chart] = []  # not painted yet in this frame
        self._more = QTimer(self, interval=0, singleShot=True)
        self._more.timeout.connect(self._paint_rest)

    @property
    def is_busy(self) -> bool:
        """Whether charts of this frame are still to be painted."""
        return bool(self._rest)

    def forget(self) -> None:
        """Repaint everything next time."""
        self._painted.clear()

    def stale(self, name: str, *versions: object) -> bool:
        """Whether `name` was painted with other versions; stores the new ones."""
        if self._painted.get(name) == versions:
            return False
        self._painted[name] = versions
        return True

    def paint(self) -> None:
        """Paint the visible charts that changed; after 8 ms the rest waits for the next turn of the event loop."""
        self._rest = self._board.visible() if self._shown.store is not None else []
        self._paint_rest()

    def _paint_rest(self) -> None:
        """Paint each chart once per frame, even if the first has changed again."""
        view, deadline = self.view(), time.perf_counter() + _BUDGET_S
        while self._rest:
            if self.paint_chart(self._rest.pop(0), view) and time.perf_counter() > deadline:
                break
        if self._rest:
            self._more.start()

    def view(self) -> View:
        """The current view of all plots."""
        from app.pages.plots.plot_data import View

        controls = self._controls
        low, high = self._shown.zoom or view_range.whole(self._shown.stores, controls.axis)
        log, clip = controls.log_scale.isChecked(), controls.clip.isChecked()
        return View(controls.axis, low, high, controls.weight, clip=clip, log=log)

    def lines(self, name: str) -> list[plot_specs.Line]:
        """The curves of a plot, with run names if there are overlays."""
        shown = self._shown
        if shown.store is None:
            return []
        return plot_specs.lines(name, shown.store, shown.runs, shown.own)

    def paint_chart(self, chart: Chart, view: View) -> bool:
        """Paint a chart if it changed; returns whether it did."""
        from app.pages.plots import plot_data

        store, tokens = self._shown.store, self._shown.tokens
        if store is None:
            return False
        name, comparing, lines = chart.name, bool(self._shown.runs), self.lines(chart.name)
        versions = [(line, line.store.version(line.series)) for line in lines]
        marks = store.markers_version() if name == "loss" else ()
        painted = self.stale(name, versions, view, marks, chart.width() // 256, id(tokens))
        if painted:
            there = plot_data.has_data(lines)
            canvas = chart.canvas or self._prepare(chart)
            chart.show_data(there)
            self._word(chart)
            if there:
                plot_data.paint(canvas, name, lines, view)
            if name == "loss":
                plot_data.mark_loss(canvas, store, view, comparing=comparing)
            elif name == "temperature":
                plot_data.mark_heat(canvas, store, view)
            self._painted.pop(f"{name} legend", None)
        if self.stale(f"{name} legend", self._shown.cross, self._rows(chart)):
            self._show_legend(chart, store, lines, view)
            self._show_cross(chart, view)
        return painted

    def _show_legend(self, chart: Chart, store: MetricStore, lines: list[plot_specs.Line], view: View) -> None:
        from app.pages.plots import plot_data

        name, comparing, cross = chart.name, bool(self._shown.runs), self._shown.cross
        at = None if cross is None else cross[0]
        entries = plot_data.legend(name, lines, view, at) if plot_data.has_data(lines) else []
        entries += plot_data.marks_legend(name, store, comparing=comparing) if entries else []
        of_runs = comparing and any(line.run for line in lines)  # the names are above all plots
        chart.legend.display(
            entries, self._shown.tokens, most=self._rows(chart), widest=plot_specs.widest(name),
            reading=at is not None, named=not of_runs,
        )  # fmt: skip

    def _rows(self, chart: Chart) -> int:
        """Maximum number of rows of the legend."""
        if chart.name == "time":
            return 3
        return 2 if chart.name == "loss" or chart.height() >= _TALL else 1

    def _show_cross(self, chart: Chart, view: View) -> None:
        if chart.canvas is None:
            return
        if self._shown.cross is None:
            chart.canvas.show_cross(None)
        else:
            x, where = self._shown.cross
            chart.canvas.show_cross(x, view_range.place(view.axis, x) if where == chart.name else "")
