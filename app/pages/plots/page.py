"""The Plots page: key figures, and the curves of a run as an overview or in detail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QPixmap, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QButtonGroup, QWidget

from app.pages.page import Page, ShownRun
from app.pages.plots import plot_specs
from app.pages.plots.advice_panel import AdvicePanel
from app.pages.plots.chart import Chart
from app.pages.plots.legend import Legend, LegendEntry
from app.pages.plots.plot_grid import PlotGrid
from app.pages.plots.plot_painter import PlotPainter
from app.pages.plots.plot_specs import MAX_OVERLAYS, OWN_COLOR, CurveSpec, Overlay, run_key
from app.pages.plots.tiles import Tiles
from app.pages.plots.toolbar import Toolbar
from app.texts import current_language, tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    horizontal_layout,
    move_focus,
    push_button,
    scroll_area,
    set_object_name,
    vertical_layout,
)
from trainer_core.console.performance import format_execution

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.csv_export import CsvColumn
    from app.core.metrics.metric_store import MetricStore
    from app.core.settings import Settings
    from app.pages.plots.canvas import Canvas

_MIN_HEIGHT_WITH_TILES: Final = 340  # pixels
_MAX_ROWS_OF_RUN_NAMES: Final = 3


class PlotsPage(Page):
    """Shows a `MetricStore`. `display` repaints only what changed and is visible."""

    performance_requested = Signal()  # open the page with the details of the fast paths
    export_requested = Signal(str, str)  # name of the plot; copy_picture, save_png, copy_data or save_csv
    overlay_removal_requested = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tiles, self.advice, self.toolbar, self.grid = Tiles(), AdvicePanel(palette), Toolbar(), PlotGrid()
        self.overview, self.detail = push_button("overview", checkable=True), push_button("detail", checkable=True)
        self._sub_pages = QButtonGroup(self)
        self.execution_label = set_object_name(ElidedLabel(), "muted")
        self.details_button, self.tensorboard_button = push_button("link"), push_button("openInTensorBoard")
        self.run_names, self.remove_overlays_button = Legend(), push_button("removeOverlays")
        self._comparison = QWidget()  # visible while other runs are overlaid
        self._repaint_timer = QTimer(self, interval=0, singleShot=True)
        self.painter = PlotPainter(self.grid, self.toolbar, palette, self._add_canvas)
        self._build_layout()
        self._connect()
        self.grid.show_charts(plot_specs.OVERVIEW, scrolls=False)
        self.retranslate()

    def _build_layout(self) -> None:
        content = set_object_name(QWidget(), "scrolled")
        scrolled = vertical_layout()
        scrolled.addWidget(self.advice)
        scrolled.addWidget(self.grid, 1)
        content.setLayout(scrolled)
        self._area = scroll_area(content)
        segments = QWidget()
        segments.setLayout(horizontal_layout(self.overview, self.detail, spacing=0))
        for button in (self.overview, self.detail):
            self._sub_pages.addButton(button)
        self.overview.setChecked(True)
        self.details_button.hide()
        self.tensorboard_button.hide()
        buttons = self.details_button, self.tensorboard_button
        first_row = QWidget()
        first_row.setLayout(horizontal_layout(segments, (self.execution_label, 1), *buttons))
        comparison = horizontal_layout((self.run_names, 1), self.remove_overlays_button, spacing=2 * SPACING)
        comparison.setAlignment(self.remove_overlays_button, Qt.AlignmentFlag.AlignTop)
        self._comparison.setLayout(comparison)
        self._comparison.hide()
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        for widget in (self.tiles, first_row, self.toolbar, self._comparison):
            layout.addWidget(widget)
        layout.addWidget(self._area, 1)
        self.setLayout(layout)

    def _connect(self) -> None:
        self._sub_pages.buttonClicked.connect(self._on_sub_page_clicked)
        self.remove_overlays_button.clicked.connect(self._on_remove_clicked)
        self.toolbar.changed.connect(self._refresh)
        self.toolbar.axis_changed.connect(self._on_axis_changed)
        self.toolbar.show_all_requested.connect(self.show_all)
        self.toolbar.log_scale.toggled.connect(lambda: self._set_zoom("loss", 1, None))
        self.details_button.clicked.connect(self.performance_requested)
        self.grid.chart_added.connect(self._on_chart_added)
        self.run_names.toggled.connect(partial(self._on_legend_toggled, ""))
        self._repaint_timer.timeout.connect(self._refresh)
        self._area.verticalScrollBar().valueChanged.connect(lambda: self._repaint_timer.start())

    def _on_chart_added(self, chart: Chart) -> None:
        chart.action_requested.connect(partial(self._on_chart_action, chart.name))
        chart.legend.toggled.connect(partial(self._on_legend_toggled, chart.name))
        self.painter.update_texts(chart)

    # --- canvases, built after the first paint --------------------------------------------------

    @property
    def charts(self) -> dict[str, Chart]:
        return self.grid.charts

    @property
    def is_built(self) -> bool:
        return self.charts["loss"].canvas is not None

    def build(self) -> None:
        """Import pyqtgraph (0.3 s, 50 MB) and build the canvases of the overview once."""
        if self.is_built:
            return
        for chart in self.charts.values():
            self._add_canvas(chart)
        self.repaint_all()

    def _add_canvas(self, chart: Chart) -> Canvas:
        import app.core.metrics  # noqa: F401 - sets how numpy is imported, before pyqtgraph imports it
        from app.pages.plots.canvas import Canvas

        canvas = Canvas(self.painter.palette)
        canvas.zoomed.connect(partial(self._set_zoom, chart.name))
        canvas.reset_requested.connect(self.show_all)
        canvas.cursor_moved.connect(partial(self._set_crosshair, chart.name))
        canvas.maximize_requested.connect(partial(self._on_chart_action, chart.name, "maximize"))
        canvas.escape_pressed.connect(lambda: self._maximize(""))
        chart.set_canvas(canvas)
        return canvas

    # --- display -------------------------------------------------------------------------------------

    def show_run(self, run: ShownRun) -> None:
        self.display(run.record.metrics, run.record.execution, run.name)

    def display(self, store: MetricStore, execution: ExecutionInfo | None = None, name: str | None = None) -> None:
        """Show the store, and the fast paths of the run in one line. `name`: the name of the run beside overlays, empty
        if there is no run; None: unchanged. Cheap if nothing changed."""
        painter = self.painter
        if store is not painter.store:
            painter.store, painter.crosshair = store, None
            painter.invalidate()
        if name is not None and name != painter.run_name:
            painter.run_name = name
            self._update_run_names()
            self._update_chart_texts()  # only without a run, the empty plots advise to press Start
        if not self.isVisible():
            return
        self.tiles.display(store)
        if execution is not None:
            text = format_execution(execution.run_fast_paths, execution.compile_s, current_language())
            self.execution_label.setText(text[:1].upper() + text[1:])
            self.details_button.setVisible(bool(text))
            self.tensorboard_button.setVisible(execution.uses_tensorboard)
        self._refresh()

    def set_overlays(self, runs: list[Overlay]) -> None:
        """Replace the overlaid runs."""
        self.painter.overlays = runs[:MAX_OVERLAYS]
        self._update_run_names()
        self._refresh()

    def _update_run_names(self) -> None:
        """Show the names of the displayed run, if any, and of the overlaid runs, once for all plots."""
        name, overlays = self.painter.own_name, self.painter.overlays
        runs = [] if name is None else [("line", OWN_COLOR, name, run_key(name))]
        runs += [(run.style, run.color, run.name, run_key(run.name)) for run in overlays]
        entries = [
            LegendEntry(style, color, name, key=key, is_hidden=self.painter.is_hidden("", key))
            for style, color, name, key in runs
        ]
        self.run_names.display(entries, self.painter.palette, max_rows=_MAX_ROWS_OF_RUN_NAMES)
        self._comparison.setVisible(bool(overlays))

    def repaint_all(self) -> None:
        self.painter.invalidate()
        if self.painter.store is not None:
            self.display(self.painter.store)

    def show_all(self) -> None:
        """Show the whole run in all plots and follow it as it grows."""
        self.painter.y_zooms.clear()
        self._set_zoom("", 0, None)

    def _set_zoom(self, name: str, axis: int, zoom: tuple[float, float] | None) -> None:
        """Set the visible part of the x axis (0) of all plots, or of the y axis (1) of one; None: all of it."""
        painter = self.painter
        if axis == 0:
            painter.zoom = zoom
        elif zoom is None:
            painter.y_zooms.pop(name, None)
        else:
            painter.y_zooms[name] = zoom
        self.toolbar.show_all_button.setEnabled(painter.zoom is not None or bool(painter.y_zooms))
        self._repaint_timer.start()  # once for both axes

    def _refresh(self) -> None:
        """Show the charts of this sub-page and repaint what changed."""
        store, is_detail = self.painter.store, self.detail.isChecked()
        if store is not None and self.is_built and self.isVisible():
            names = plot_specs.overview_plots(store)
            if is_detail:
                names = plot_specs.detail_plots(store, self.painter.overlays)
            self.grid.show_charts(names, scrolls=is_detail)
            self.painter.paint()

    def retheme(self, palette: Palette) -> None:
        self.painter.palette = palette
        self.advice.retheme(palette)
        for chart in self.charts.values():
            if chart.canvas is not None:
                chart.canvas.retheme(palette)
        self._update_run_names()
        self.repaint_all()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        QTimer.singleShot(0, self.repaint_all)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.tiles.setVisible(event.size().height() >= _MIN_HEIGHT_WITH_TILES)
        self._repaint_timer.start()

    # --- input -----------------------------------------------------------------------------------------

    def _set_crosshair(self, chart: str, x: float | None) -> None:
        """Show all values at this position of the axis; the line has its label in one plot."""
        crosshair = None if x is None else (x, chart)
        if crosshair != self.painter.crosshair:
            self.painter.crosshair = crosshair
            self._refresh()

    def _on_sub_page_clicked(self) -> None:
        self._area.verticalScrollBar().setValue(0)
        self._maximize("")
        self._refresh()

    def _on_axis_changed(self) -> None:
        self.painter.crosshair = None
        self.show_all()

    def _on_remove_clicked(self) -> None:
        move_focus(self._comparison, self.detail if self.detail.isChecked() else self.overview)
        self.set_overlays([])
        self.overlay_removal_requested.emit()

    def _on_chart_action(self, name: str, action: str) -> None:
        if action != "maximize":
            self.export_requested.emit(name, action)
            return
        self._maximize("" if self.grid.maximized else name)
        canvas = self.charts[name].canvas
        if canvas is not None:
            canvas.setFocus()

    def _on_legend_toggled(self, name: str, key: str, alone: bool) -> None:
        legend = self.charts[name].legend if name else self.run_names
        self.painter.toggle(name, {entry.key for entry in legend.entries if entry.key}, key, alone=alone)
        self._update_run_names()
        self._refresh()

    def _maximize(self, name: str) -> None:
        self.grid.maximize(name)
        self._repaint_timer.start()  # after the new layout

    # --- export ----------------------------------------------------------------------------------------

    def picture(self, name: str) -> QPixmap:
        """Return a picture of a plot, also of one outside the visible area, with two pixels for each on screen."""
        chart, layout = self.charts[name], self.charts[name].layout()
        self.painter.paint_chart(chart, self.painter.view())
        self.painter.update_legend(chart, for_picture=True)
        if layout is not None:
            layout.activate()
        picture = chart.picture()
        self.painter.update_legend(chart)
        return picture

    def csv_columns(self, name: str) -> list[CsvColumn]:
        """Return the complete curves of a plot in its unit."""
        from app.core.metrics.csv_export import CsvColumn
        from app.core.metrics.metric_table import AXES

        view, scale = self.painter.view(), plot_specs.get_spec(name).scale
        return [
            CsvColumn(
                self._column_title(name, curve),
                tuple(curve.store.series(curve.series, axis)[0] for axis in AXES),
                view.points(curve)[1],
                scale,
                curve.run,
            )
            for curve in self.painter.curves(name)
        ]

    def _column_title(self, name: str, curve: CurveSpec) -> str:
        """Return the plot with its unit, and the curve."""
        title, weight = plot_specs.title(name, self.painter.store), self.toolbar.smoothing_weight
        if curve.label:
            title = f"{title}: {curve.label}"
        if curve.smoothed and weight:
            return tr("plots.smoothed", curve=title, weight=f"{weight:.2f}")
        return title

    @property
    def run_name(self) -> str:
        """Name of the displayed run; empty if there is none."""
        return self.painter.run_name

    # --- settings and texts ----------------------------------------------------------------------------

    def restore_state(self, settings: Settings) -> None:
        self.toolbar.restore_state(settings)
        if settings.plots_page == "detail":
            self.detail.setChecked(True)
            self.grid.show_charts(plot_specs.detail_plots(None, ()), scrolls=True)

    def save_state(self, settings: Settings) -> None:
        self.toolbar.save_state(settings)
        settings.plots_page = "detail" if self.detail.isChecked() else "overview"

    def _update_chart_texts(self) -> None:
        for chart in self.charts.values():
            self.painter.update_texts(chart)

    def retranslate(self) -> None:
        self._update_chart_texts()
        self.overview.setText(tr("plots.overview"))
        self.detail.setText(tr("plots.detail"))
        self.detail.setToolTip(tr("plots.detail_hint"))
        self.remove_overlays_button.setText(tr("plots.remove_overlays"))
        self.remove_overlays_button.setToolTip(tr("plots.remove_overlays_hint"))
        self.details_button.setText(tr("plots.details"))
        self.tensorboard_button.setText(tr("window.open_in_tensorboard"))
        self.repaint_all()
