"""Step time card: stacked plot of the parts of each step, with the values of one step as its legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QWidget

from app.pages.performance import figures
from app.pages.plots import view_range
from app.pages.plots.chart import Chart
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import card, fill_grid, label, set_text_if_changed, vertical_layout

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore
    from app.pages.plots.canvas import Canvas

_HEIGHT: Final = 270


class StepTimeCard(QWidget):
    """The legend has the values at the crosshair of the plot, or of the last step."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._metrics: MetricStore | None = None
        self._zoom: tuple[float, float] | None = None
        self._crosshair: float | None = None  # a step; None: the last one
        self.chart = Chart("step_time")
        self.chart.setFixedHeight(_HEIGHT)
        self._title, self.legend = label("section"), label()
        self.legend.setTextFormat(Qt.TextFormat.RichText)
        self.rows: list[tuple[str, str]] = []
        self._rows_layout = QGridLayout()
        self._rows_layout.setHorizontalSpacing(2 * SPACING)
        self._rows_layout.setVerticalSpacing(1)
        self._rows_layout.setColumnStretch(1, 1)
        side = vertical_layout(spacing=SPACING // 2)
        side.addWidget(self._title)
        side.addWidget(self.legend)
        side.addLayout(self._rows_layout)
        side.addStretch(1)
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACING)
        self._layout.addWidget(self.chart, 5, Qt.AlignmentFlag.AlignTop)
        self._layout.addWidget(card(side), 3)

    def set_narrow(self, narrow: bool) -> None:
        direction = QBoxLayout.Direction
        self._layout.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)

    def display(self, metrics: MetricStore, execution: ExecutionInfo) -> None:
        if metrics is not self._metrics:
            self._metrics, self._zoom = metrics, None
            self._set_crosshair(None)
        self._show_figures()
        rows = figures.rows(execution)
        if rows != self.rows:
            self.rows = rows
            fill_grid(self._rows_layout, rows)
        has_data = len(metrics.series("time_forward")[0]) > 0
        if self.chart.canvas is None and has_data:
            self.chart.set_canvas(self._build_canvas())
        self._paint()
        self.chart.show_canvas(has_data)

    def _build_canvas(self) -> Canvas:
        from app.pages.plots.canvas import Canvas

        canvas = Canvas(self._palette)
        canvas.range_changed.connect(lambda low, high: self._set_zoom((low, high)))
        canvas.reset_requested.connect(lambda: self._set_zoom(None))
        canvas.cursor_moved.connect(self._set_crosshair)
        return canvas

    def _paint(self) -> None:
        if self.chart.canvas is None or self._metrics is None:
            return
        from app.pages.plots.plot_data import View, paint
        from app.pages.plots.plot_specs import curve_specs

        full_range = view_range.full_range([self._metrics], "step")
        view = View("step", *(self._zoom or full_range), full_range)
        paint(self.chart.canvas, "time", curve_specs("time", self._metrics, (), None), view)

    def _set_crosshair(self, x: float | None) -> None:
        self._crosshair = x
        if self.chart.canvas is not None:
            self.chart.canvas.show_crosshair(x)
        self._show_figures()

    def _set_zoom(self, zoom: tuple[float, float] | None) -> None:
        self._zoom = zoom
        self._paint()

    def _show_figures(self) -> None:
        if self._metrics is None:
            return
        title = tr("performance.now")
        if self._crosshair is not None:
            title = tr("common.step", step=formatting.format_count(self._crosshair))
        set_text_if_changed(self._title, title)
        rows = [
            f'<tr><td><font color="{getattr(self._palette, figures.PARTS[name])}">■</font>&nbsp;{title}</td>'
            f'<td width="80" align="right">{amount}</td>'
            f'<td width="60" align="right"><font color="{self._palette.muted}">{share}</font></td></tr>'
            for name, (title, amount, share) in figures.part_rows(self._metrics, self._crosshair).items()
        ]
        set_text_if_changed(self.legend, f'<table width="100%">{"".join(reversed(rows))}</table>')

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        if self.chart.canvas is not None:
            self.chart.canvas.retheme(palette)
        self.retranslate()

    def retranslate(self) -> None:
        self.chart.set_texts(tr("performance.step_time_ms"), tr("performance.no_data_yet"))
        self._show_figures()
        self.rows = []
