"""Which plots are painted when: only what changed, of what can be seen, and never long at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer

from app.theme.tokens import Tokens
from app.views.plots import contents, scope
from app.views.plots.board import Board
from app.views.plots.chart import Chart
from app.views.plots.controls import Controls
from app.views.plots.overlays import Overlay

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.state.measurements.metrics import MetricStore
    from app.views.plots.canvas import Canvas
    from app.views.plots.drawing import View

_BUDGET_S: Final = 0.008  # of painting at once: what changed is drawn, as much again, and input comes first
_TALL: Final = 130  # pixels: from here on, a plot has room for two rows of a legend


@dataclass(slots=True)
class Shown:
    """What the plots show, and how one looks at it."""

    tokens: Tokens
    store: MetricStore | None = None
    name: str = ""  # of the run on show
    runs: list[Overlay] = field(default_factory=list)
    zoom: tuple[float, float] | None = None  # the part of the x axis that the person looks at
    cross: tuple[float, str] | None = None  # where values are read, and in which plot

    @property
    def own(self) -> str | None:
        """What the run on show is called beside others; None: there is none as yet, the others stand alone."""
        if self.name or (self.store is not None and len(self.store.series("train_loss")[0])):
            return self.name or contents.this_run()
        return None

    @property
    def stores(self) -> list[MetricStore]:
        return [*([self.store] if self.store is not None else []), *(run.store for run in self.runs)]


class Painter(QObject):
    """Paints the charts of a board. `prepare`: gives a chart its canvas; `word`: its title."""

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
        self._rest: list[Chart] = []  # to be painted of this frame
        self._more = QTimer(self, interval=0, singleShot=True)
        self._more.timeout.connect(self._paint_rest)

    @property
    def is_busy(self) -> bool:
        """What took too long at once is still to be painted."""
        return bool(self._rest)

    def forget(self) -> None:
        """Paint everything again the next time."""
        self._painted.clear()

    def stale(self, name: str, *versions: object) -> bool:
        """Whether something was painted of other versions; from now on, it is of these."""
        if self._painted.get(name) == versions:
            return False
        self._painted[name] = versions
        return True

    def paint(self) -> None:
        """Paint what changed of what can be seen; what takes too long waits until input has had its turn."""
        self._rest = self._board.visible() if self._shown.store is not None else []
        self._paint_rest()

    def _paint_rest(self) -> None:
        """Each chart once a frame: while events pour in, the first has changed again when the last is painted."""
        view, deadline = self.view(), time.perf_counter() + _BUDGET_S
        while self._rest and self._caught_up(self._rest[0], view, deadline):
            if self.paint_chart(self._rest.pop(0), view) and time.perf_counter() > deadline:
                break
        if self._rest:
            self._more.start()

    def _caught_up(self, chart: Chart, view: View, deadline: float) -> bool:
        """Whether its curves know all of their rows by then: those of a million take some turns, once."""
        from app.views.plots import drawing

        for line in self.lines(chart.name):
            found = drawing.curve(line, view)
            while found is not None and not found.catch_up(means=line.look == "area"):
                if time.perf_counter() > deadline:
                    return False
        return True

    def view(self) -> View:
        """How one looks at all plots now."""
        from app.views.plots.drawing import View

        controls = self._controls
        low, high = self._shown.zoom or scope.whole(self._shown.stores, controls.axis)
        log, clip = controls.log_scale.isChecked(), controls.clip.isChecked()
        return View(controls.axis, low, high, controls.weight, clip=clip, log=log)

    def lines(self, name: str) -> list[contents.Line]:
        """The curves of a plot, each with the name of its run where there are several."""
        shown = self._shown
        if shown.store is None:
            return []
        return contents.lines(name, shown.store, shown.runs, shown.own)

    def paint_chart(self, chart: Chart, view: View) -> bool:
        """Returns whether it changed."""
        from app.views.plots import drawing

        store, tokens = self._shown.store, self._shown.tokens
        if store is None:
            return False
        name, comparing, lines = chart.name, bool(self._shown.runs), self.lines(chart.name)
        versions = [(line, line.store.version(line.series)) for line in lines]
        marks = store.marks_version() if name == "loss" else ()
        painted = self.stale(name, versions, view, marks, chart.width() // 256, id(tokens))
        if painted:
            there = drawing.has_data(lines)
            canvas = chart.canvas or self._prepare(chart)
            chart.show_data(there)
            self._word(chart)
            if there:
                drawing.paint(canvas, name, lines, view)
            if name == "loss":
                drawing.mark_loss(canvas, store, view, comparing=comparing)
            elif name == "temperature":
                drawing.mark_heat(canvas, store, view)
            self._painted.pop(f"{name} legend", None)
        if self.stale(f"{name} legend", self._shown.cross, self._rows(chart)):
            self._show_legend(chart, store, lines, view)
            self._show_cross(chart, view)
        return painted

    def _show_legend(self, chart: Chart, store: MetricStore, lines: list[contents.Line], view: View) -> None:
        from app.views.plots import drawing

        name, comparing, cross = chart.name, bool(self._shown.runs), self._shown.cross
        at = None if cross is None else cross[0]
        entries = drawing.legend(name, lines, view, at) if drawing.has_data(lines) else []
        entries += drawing.marks_legend(name, store, comparing=comparing) if entries else []
        of_runs = comparing and any(line.run for line in lines)  # their names stand above all plots
        chart.legend.display(
            entries, self._shown.tokens, most=self._rows(chart), widest=contents.widest(name),
            reading=at is not None, named=not of_runs,
        )  # fmt: skip

    def _rows(self, chart: Chart) -> int:
        """How many rows of a legend leave enough of the plot."""
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
            chart.canvas.show_cross(x, scope.place(view.axis, x) if where == chart.name else "")
