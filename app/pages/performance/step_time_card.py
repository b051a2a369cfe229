"""Step time card: stacked plot of the parts of each step, with the values of one step as its legend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QVBoxLayout, QWidget

from app.pages.performance import figures
from app.pages.plots import view_range
from app.pages.plots.chart import Chart
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import card, fill_grid, label, set_text_if_changed

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore
    from app.pages.plots.canvas import Canvas

_HEIGHT = 270


class StepTimeCard(QWidget):
    """The legend has the values at the cursor of the plot, or of the last step."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._metrics: MetricStore | None = None
        self._zoom: tuple[float, float] | None = None
        self._cursor: float | None = None  # a step; None: the last one
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
        self._build_layout()

    def _build_layout(self) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(1)
        grid.setColumnStretch(1, 1)
        right = Qt.AlignmentFlag.AlignRight
        for row, name in enumerate(reversed(figures.PARTS)):  # in the order of the stacked plot
            grid.addWidget(self._signs[name], row, 0)
            grid.addWidget(self._names[name], row, 1)
            grid.addWidget(self.amounts[name], row, 2, right)
            grid.addWidget(self.shares[name], row, 3, right)
        grid.setColumnMinimumWidth(3, 6 * SPACING)
        self._rows.setHorizontalSpacing(2 * SPACING)
        self._rows.setVerticalSpacing(1)
        self._rows.setColumnStretch(1, 1)
        side = QVBoxLayout()
        side.setSpacing(SPACING // 2)
        side.addWidget(self._title)
        side.addLayout(grid)
        side.addSpacing(SPACING // 2)
        side.addLayout(self._rows)
        side.addStretch(1)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACING)
        self._layout.addWidget(self.chart, 5, Qt.AlignmentFlag.AlignTop)
        self._layout.addWidget(card(side), 3)

    def set_narrow(self, narrow: bool) -> None:
        direction = QBoxLayout.Direction
        self._layout.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, metrics: MetricStore, execution: ExecutionInfo) -> None:
        if metrics is not self._metrics:
            self._metrics, self._zoom = metrics, None
            self._set_cursor(None)
        self._show_figures()
        self._show_rows(figures.rows(execution))
        x, _ = metrics.series("time_forward")
        if self.chart.canvas is None and len(x):
            self._build()
        if self.chart.canvas is not None:
            self._paint(self.chart.canvas, metrics)
        self.chart.show_data(len(x) > 0)

    def _build(self) -> None:
        from app.pages.plots.canvas import Canvas

        canvas = Canvas(self._palette)
        canvas.moved.connect(lambda low, high: self._set_zoom((low, high)))
        canvas.reset_asked.connect(lambda: self._set_zoom(None))
        canvas.pointed.connect(self._set_cursor)
        canvas.keyed.connect(self._on_key)
        self.chart.take_canvas(canvas)

    def _paint(self, canvas: Canvas, metrics: MetricStore) -> None:
        from app.pages.plots.plot_data import View, paint
        from app.pages.plots.plot_specs import lines

        low, high = self._zoom or self._whole()
        view = View("step", low, max(high, low + 1e-9), 0.0, clip=False, log=False)
        paint(canvas, "time", lines("time", metrics, (), ""), view)

    def _whole(self) -> tuple[float, float]:
        return view_range.whole([self._metrics] if self._metrics is not None else [], "step")

    def _set_cursor(self, x: float | None) -> None:
        self._cursor = x
        if self.chart.canvas is not None:
            self.chart.canvas.show_cross(x)
        self._show_figures()

    def _on_key(self, key: str) -> None:
        if key in ("escape", "maximise"):
            self._set_cursor(None)
            return
        whole = self._whole()
        low, high = self._zoom or whole
        then = view_range.moved(view_range.Looking(low, high, self._cursor), key, whole)
        if (then.low, then.high) != (low, high):
            self._set_zoom(None if (then.low, then.high) == whole else (then.low, then.high))
        self._set_cursor(then.cross)

    def _set_zoom(self, zoom: tuple[float, float] | None) -> None:
        self._zoom = zoom
        if self._metrics is not None and self.chart.canvas is not None:
            self._paint(self.chart.canvas, self._metrics)

    def _show_figures(self) -> None:
        if self._metrics is None:
            return
        title = tr("performance.now")
        if self._cursor is not None:
            title = tr("common.step_step_2", step=formatting.format_count(self._cursor))
        set_text_if_changed(self._title, title)
        spent, present = figures.parts(self._metrics, self._cursor), figures.parts_of(self._metrics)
        whole = sum(part or 0.0 for part in spent.values())
        for name, part in spent.items():
            for labels in (self._signs, self._names, self.amounts, self.shares):
                labels[name].setVisible(name in present)
            self.amounts[name].setText("–" if part is None else figures.milliseconds(part))
            self.shares[name].setText("" if part is None else figures.share(part, whole))

    def _show_rows(self, rows: list[tuple[str, str]]) -> None:
        if rows != self.rows:
            self.rows = rows
            fill_grid(self._rows, rows)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        if self.chart.canvas is not None:
            self.chart.canvas.retheme(palette)
        self.retranslate()

    def retranslate(self) -> None:
        self.chart.set_words(tr("performance.time_step_ms"), tr("performance.no_data_yet"))
        self._show_figures()
        for name, color in figures.PARTS.items():
            self._signs[name].setText("■")
            self._signs[name].setStyleSheet(f"color: {getattr(self._palette, color)}")
            self._names[name].setText(figures.part_title(name))
        self.rows = []
