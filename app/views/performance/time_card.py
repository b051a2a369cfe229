"""Where the time of a step goes: a plot of all steps, and figures, which are its legend: the newest, or those of the
step that one points at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.performance import figures
from app.views.plots import scope
from app.views.plots.chart import Chart
from app.views.widgets import card, fill, label, put

if TYPE_CHECKING:
    from app.state.computing import Computing
    from app.state.measurements.metrics import MetricStore
    from app.views.plots.canvas import Canvas

_HEIGHT = 270


class TimeCard(QWidget):
    """The plot at the left, the figures at the right; in a narrow window under one another."""

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._metrics: MetricStore | None = None
        self._zoom: tuple[float, float] | None = None
        self._cross: float | None = None  # the step whose figures are read; None: the newest
        self.chart = Chart("step_time")
        self.chart.setFixedHeight(_HEIGHT)
        self._title = label("section")
        self._signs = {name: label() for name in figures.PARTS}
        self._names = {name: label() for name in figures.PARTS}
        self.amounts = {name: label() for name in figures.PARTS}
        self.shares = {name: label("muted") for name in figures.PARTS}
        self.rows: list[tuple[str, str]] = []
        self._rows = QGridLayout()
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._arrange()

    def _arrange(self) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE)
        grid.setVerticalSpacing(1)
        grid.setColumnStretch(1, 1)
        right = Qt.AlignmentFlag.AlignRight
        for row, name in enumerate(reversed(figures.PARTS)):  # as they lie above one another in the plot
            grid.addWidget(self._signs[name], row, 0)
            grid.addWidget(self._names[name], row, 1)
            grid.addWidget(self.amounts[name], row, 2, right)
            grid.addWidget(self.shares[name], row, 3, right)
        grid.setColumnMinimumWidth(3, 6 * SPACE)
        self._rows.setHorizontalSpacing(2 * SPACE)
        self._rows.setVerticalSpacing(1)
        self._rows.setColumnStretch(1, 1)
        side = QVBoxLayout()
        side.setSpacing(SPACE // 2)
        side.addWidget(self._title)
        side.addLayout(grid)
        side.addSpacing(SPACE // 2)
        side.addLayout(self._rows)
        side.addStretch(1)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACE)
        self._layout.addWidget(self.chart, 5, Qt.AlignmentFlag.AlignTop)
        self._layout.addWidget(card(side), 3)

    def fit(self, *, narrow: bool) -> None:
        direction = QBoxLayout.Direction
        self._layout.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, metrics: MetricStore, computing: Computing) -> None:
        """Show the newest figures, and all steps where the plot is there."""
        if metrics is not self._metrics:
            self._metrics, self._zoom = metrics, None
            self._read_at(None)
        self._show_figures()
        self._show_rows(figures.rows(computing))
        x, _ = metrics.series("time_forward")
        if self.chart.canvas is None and len(x):
            self._build()
        if self.chart.canvas is not None:
            self._paint(self.chart.canvas, metrics)
        self.chart.show_data(len(x) > 0)

    def _build(self) -> None:
        from app.views.plots.canvas import Canvas

        canvas = Canvas(self._tokens)
        canvas.moved.connect(self._on_moved)
        canvas.reset_asked.connect(self._show_all)
        canvas.pointed.connect(self._read_at)
        canvas.keyed.connect(self._on_key)
        self.chart.take_canvas(canvas)

    def _paint(self, canvas: Canvas, metrics: MetricStore) -> None:
        """The parts on top of each other, of what is seen."""
        from app.views.plots.contents import lines
        from app.views.plots.drawing import View, paint

        low, high = self._zoom or self._whole()
        view = View("step", low, max(high, low + 1e-9), 0.0, clip=False, log=False)
        paint(canvas, "time", lines("time", metrics, (), ""), view)

    def _whole(self) -> tuple[float, float]:
        """Of the axis, when all is shown."""
        return scope.whole([self._metrics] if self._metrics is not None else [], "step")

    def _read_at(self, x: float | None) -> None:
        """Tell the figures of the step at this place of the axis."""
        self._cross = x
        if self.chart.canvas is not None:
            self.chart.canvas.show_cross(x)
        self._show_figures()

    def _on_key(self, key: str) -> None:
        if key in ("escape", "maximise"):
            self._read_at(None)
            return
        whole = self._whole()
        low, high = self._zoom or whole
        then = scope.moved(scope.Looking(low, high, self._cross), key, whole)
        if (then.low, then.high) != (low, high):
            self._look_at(None if (then.low, then.high) == whole else (then.low, then.high))
        self._read_at(then.cross)

    def _on_moved(self, low: float, high: float) -> None:
        self._look_at((low, high))

    def _show_all(self) -> None:
        self._look_at(None)

    def _look_at(self, zoom: tuple[float, float] | None) -> None:
        self._zoom = zoom
        if self._metrics is not None and self.chart.canvas is not None:
            self._paint(self.chart.canvas, self._metrics)

    def _show_figures(self) -> None:
        if self._metrics is None:
            return
        put(self._title, self._now() if self._cross is None else figures.step_title(self._cross))
        spent = figures.parts(self._metrics, self._cross)
        whole = sum(part or 0.0 for part in spent.values())
        there = figures.parts_of(self._metrics)
        for name, part in spent.items():
            for one in (self._signs, self._names, self.amounts, self.shares):
                one[name].setVisible(name in there)
            self.amounts[name].setText("–" if part is None else figures.milliseconds(part))
            self.shares[name].setText("" if part is None else figures.share(part, whole))

    def _show_rows(self, rows: list[tuple[str, str]]) -> None:
        if rows == self.rows:
            return
        self.rows = rows
        fill(self._rows, rows)

    def _now(self) -> str:
        return QCoreApplication.translate("StepTime", "Now")

    # --- looks and words ----------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        if self.chart.canvas is not None:
            self.chart.canvas.retheme(tokens)
        self.retranslate()

    def retranslate(self) -> None:
        title = QCoreApplication.translate("StepTime", "Time of a step (ms)")
        self.chart.set_words(title, QCoreApplication.translate("StepTime", "No data yet"))
        self._title.setText(self._now())
        for name, token in figures.PARTS.items():
            self._signs[name].setText("■")
            self._signs[name].setStyleSheet(f"color: {getattr(self._tokens, token)}")
            self._names[name].setText(figures.part_title(name))
        self.rows = []
