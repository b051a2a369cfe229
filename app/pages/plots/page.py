"""The Plots page: key figures, and the curves of a run as an overview or in detail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QPixmap, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QButtonGroup, QGridLayout, QMenu, QToolTip, QVBoxLayout, QWidget

from app.pages.page import Page, ShownRun
from app.pages.performance import execution_texts
from app.pages.plots import plot_specs
from app.pages.plots.advice_panel import AdvicePanel
from app.pages.plots.chart import Chart
from app.pages.plots.comparison_bar import ComparisonBar, add_run_names
from app.pages.plots.plot_grid import PlotGrid
from app.pages.plots.plot_painter import PlotPainter, PlotState
from app.pages.plots.plot_specs import MAX_OVERLAYS, CurveSpec, Overlay
from app.pages.plots.tiles import Tiles
from app.pages.plots.toolbar import Toolbar
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    horizontal_layout,
    move_focus,
    plain_tooltip,
    push_button,
    scroll_area,
    set_object_name,
)

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.csv_export import CsvColumn
    from app.core.metrics.metric_store import MetricStore
    from app.core.settings import Settings
    from app.pages.plots.canvas import Canvas

_TOOLTIP_DELAY_MS: Final = 300
_MIN_HEIGHT_WITH_TILES: Final = 340  # pixels
_MIN_WIDTH_OF_ONE_ROW: Final = 880  # pixels; below, the toolbar has a separate row


class PlotsPage(Page):
    """Shows a `MetricStore`. `display` repaints only what changed and is visible."""

    performance_requested = Signal()  # open the page with the details of the fast paths
    export_requested = Signal(str, object)  # copy_picture, save_png, copy_data or save_csv; names of plots
    overlay_removal_requested = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = PlotState(palette)
        self._execution: ExecutionInfo | None = None
        self._toolbar_in_first_row: bool | None = None
        self.tiles, self.advice, self.toolbar, self.grid = Tiles(), AdvicePanel(palette), Toolbar(), PlotGrid()
        self.overview, self.detail = push_button("overview", checkable=True), push_button("detail", checkable=True)
        self._sub_pages = QButtonGroup(self)
        self.comparison_bar = ComparisonBar()
        self._menu_button = IconButton("dots", "flat")
        self.execution_label = set_object_name(ElidedLabel(), "muted")
        self.details_button = push_button("link")
        self._repaint_timer = QTimer(self, interval=0, singleShot=True)
        self.painter = PlotPainter(self.grid, self.toolbar, self._state, self._add_canvas)
        self._build_layout()
        self._connect()
        self.grid.show_charts(plot_specs.OVERVIEW, scrolls=False)
        self.retranslate()

    def _build_layout(self) -> None:
        content = set_object_name(QWidget(), "scrolled")
        scrolled = QVBoxLayout(content)
        scrolled.setContentsMargins(0, 0, 0, 0)
        scrolled.setSpacing(SPACING)
        scrolled.addWidget(self.advice)
        scrolled.addWidget(self.grid, 1)
        self._area = scroll_area(content)
        self._execution_row = QWidget()
        self._execution_row.setLayout(horizontal_layout((self.execution_label, 1), self.details_button))
        self._execution_row.setContentsMargins(SPACING // 2, 0, 0, 0)
        self._execution_row.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addWidget(self.tiles)
        layout.addWidget(self._execution_row)
        self._top = QGridLayout()
        # Added while empty: PySide wraps the items of a filled layout in Python objects that outlive moved items, and
        # pyqtgraph then mistakes such a wrapper for one of its own objects at the same address.
        layout.addLayout(self._top)
        self._build_first_row()
        layout.addWidget(self.comparison_bar)
        layout.addWidget(self._area, 1)

    def _build_first_row(self) -> None:
        """Sub-pages, toolbar and the menu of all plots; in two rows on a narrow page."""
        segments = QWidget()
        segments.setLayout(horizontal_layout(self.overview, self.detail, spacing=0))
        for index, button in enumerate((self.overview, self.detail)):
            self._sub_pages.addButton(button, index)
        self.overview.setChecked(True)
        self._top.setSpacing(SPACING)
        self._top.setColumnStretch(1, 1)
        self._top.addWidget(segments, 0, 0)
        self._top.addWidget(self._menu_button, 0, 2)
        self._place_toolbar()

    def _place_toolbar(self) -> None:
        in_first_row = self.width() >= _MIN_WIDTH_OF_ONE_ROW
        if in_first_row is not self._toolbar_in_first_row:
            self._toolbar_in_first_row = in_first_row
            self._top.addWidget(self.toolbar, *((0, 1, 1, 1) if in_first_row else (1, 0, 1, 3)))

    def _connect(self) -> None:
        self._sub_pages.idClicked.connect(self._on_sub_page_clicked)
        self.comparison_bar.remove_requested.connect(self._on_remove_requested)
        self._menu_button.clicked.connect(self._open_menu)
        self.toolbar.changed.connect(self._refresh)
        self.toolbar.axis_changed.connect(self._on_axis_changed)
        self.toolbar.show_all_requested.connect(self.show_all)
        self.details_button.clicked.connect(self.performance_requested)
        self.grid.chart_added.connect(self._on_chart_added)
        self._repaint_timer.timeout.connect(self._paint)
        self._area.verticalScrollBar().valueChanged.connect(lambda: self._repaint_timer.start())

    def _on_chart_added(self, chart: Chart) -> None:
        chart.action_requested.connect(partial(self._on_chart_action, chart.name))
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

        canvas = Canvas(self._state.palette)
        canvas.range_changed.connect(lambda low, high: self._set_zoom((low, high)))
        canvas.reset_requested.connect(self.show_all)
        canvas.cursor_moved.connect(partial(self._set_crosshair, chart.name))
        canvas.maximize_requested.connect(partial(self._on_chart_action, chart.name, "maximize"))
        canvas.escape_pressed.connect(partial(self._on_escape_pressed, chart.name))
        chart.set_canvas(canvas)
        return canvas

    # --- display -------------------------------------------------------------------------------------

    def show_run(self, run: ShownRun) -> None:
        self.display(run.record.metrics, run.record.execution, run.name)

    def display(self, store: MetricStore, execution: ExecutionInfo | None = None, name: str = "") -> None:
        """Show the store, and the fast paths of the run in one line. `name`: the name of the run beside overlays.
        Cheap if nothing changed."""
        self._execution = execution or self._execution
        state, is_stale = self._state, self.painter.is_stale
        if name and name != state.run_name:
            state.run_name = name
            self._update_comparison_bar()
            self._update_chart_texts()  # the empty plots no longer advise to press Start
        if store is not state.store:
            state.store, state.crosshair = store, None
            self.painter.invalidate()
        if not self.isVisible():
            return
        if is_stale("tiles", *map(store.version, ("train_loss", "rss", "eval_loss"))):
            self.tiles.display(store)
        if self._execution is not None and is_stale("execution", id(self._execution), self._execution.version):
            text = execution_texts.format_execution(self._execution.run_fast_paths, self._execution.compile_s)
            self.execution_label.setText(text)
            self._execution_row.setVisible(bool(text))
        if self.is_built:
            self._paint()

    def set_overlays(self, runs: list[Overlay]) -> None:
        """Replace the overlaid runs."""
        self._state.overlays = runs[:MAX_OVERLAYS]
        self._update_comparison_bar()
        self._refresh()

    def _update_comparison_bar(self) -> None:
        self.comparison_bar.display(self._state.own_name, self._state.overlays, self._state.palette)

    def repaint_all(self) -> None:
        self.painter.invalidate()
        if self._state.store is not None:
            self.display(self._state.store)

    def show_all(self) -> None:
        """Show the whole run and follow it as it grows."""
        self._set_zoom(None)

    def _set_zoom(self, zoom: tuple[float, float] | None) -> None:
        self._state.zoom = zoom
        self.toolbar.show_all_button.setEnabled(zoom is not None)
        self._refresh()

    def _refresh(self) -> None:
        """Repaint what changed."""
        if self.is_built and self.isVisible():
            self._paint()

    def _paint(self) -> None:
        """Show the charts of this sub-page and repaint what changed."""
        state, is_detail = self._state, self.detail.isChecked()
        if state.store is not None:
            comparing = bool(state.overlays)
            names = plot_specs.detail_plots(state.store, comparing=comparing) if is_detail else plot_specs.OVERVIEW
            self.grid.show_charts(names, scrolls=is_detail)
            self.painter.paint()

    def retheme(self, palette: Palette) -> None:
        self._state.palette = palette
        self.advice.retheme(palette)
        for chart in self.charts.values():
            if chart.canvas is not None:
                chart.canvas.retheme(palette)
        self._update_comparison_bar()
        self.repaint_all()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        QTimer.singleShot(0, self.repaint_all)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._place_toolbar()
        self.tiles.setVisible(event.size().height() >= _MIN_HEIGHT_WITH_TILES)
        self._repaint_timer.start()

    # --- input -----------------------------------------------------------------------------------------

    def _set_crosshair(self, chart: str, x: float | None) -> None:
        """Show all values at this position of the axis; the line has its label in one plot."""
        crosshair = None if x is None else (x, chart)
        if crosshair != self._state.crosshair:
            self._state.crosshair = crosshair
            self._refresh()

    def _on_escape_pressed(self, chart: str) -> None:
        if self.grid.maximized:
            self._on_chart_action(chart, "maximize")

    def _on_sub_page_clicked(self) -> None:
        self.grid.maximize("")
        self._area.verticalScrollBar().setValue(0)
        if self.is_built:
            self._paint()
        self._repaint_timer.start()  # after the new layout

    def _on_axis_changed(self) -> None:
        self._state.crosshair = None
        self.show_all()

    def _on_remove_requested(self) -> None:
        move_focus(self.comparison_bar, self._menu_button)
        self.set_overlays([])
        self.overlay_removal_requested.emit()

    def _on_chart_action(self, name: str, action: str) -> None:
        if action != "maximize":
            self.export_requested.emit(action, [name])
            return
        self.grid.maximize("" if self.grid.maximized else name)
        canvas = self.charts[name].canvas
        if canvas is not None:
            canvas.setFocus()
        self._repaint_timer.start()

    # --- export ----------------------------------------------------------------------------------------

    def picture(self, name: str) -> QPixmap:
        """Return a picture of a plot, also of one outside the visible area, with two pixels for each on screen."""
        chart, state = self.charts[name], self._state
        if self.is_built:
            self.painter.paint_chart(chart, self.painter.view())
        picture = chart.picture()
        return add_run_names(picture, state.own_name, state.overlays, state.palette) if state.overlays else picture

    def csv_columns(self, name: str) -> list[CsvColumn]:
        """Return the complete curves of a plot in its unit."""
        from app.core.metrics.csv_export import CsvColumn
        from app.pages.plots import plot_data

        view, scale = self.painter.view(), plot_specs.get_spec(name).scale
        return [
            CsvColumn(self._column_title(name, spec), curve, scale, spec.run)
            for spec in self.painter.curves(name)
            if (curve := plot_data.find_curve(spec, view)) is not None
        ]

    def _column_title(self, name: str, spec: CurveSpec) -> str:
        """Return the plot with its unit, and the curve."""
        title, weight = plot_specs.title(name, self._state.store), self.toolbar.smoothing_weight
        if spec.label and not spec.run:
            title = f"{title}: {spec.label}"
        if spec.smoothed and weight:
            return tr("plots.smoothed", curve=title, weight=f"{weight:.2f}")
        return title

    @property
    def run_name(self) -> str:
        """Name of the displayed run; empty if there is none."""
        return self._state.run_name

    def show_message(self, text: str) -> None:
        """Show a tooltip at the menu of all plots, delayed because a closing dialog would hide it."""
        at = self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft())
        show = partial(QToolTip.showText, at, plain_tooltip(text), self._menu_button)
        QTimer.singleShot(_TOOLTIP_DELAY_MS, self, show)

    def menu(self) -> QMenu:
        """Build the menu of all plots of this sub-page."""
        menu = QMenu(self)
        menu.aboutToHide.connect(menu.deleteLater)
        names = [name for name in self.grid.displayed if self.is_built and self._has_data(name)]
        for text, action_name in (
            (tr("plots.save_all_plots_as_png"), "save_png"),
            (tr("plots.save_all_data_as_csv"), "save_csv"),
        ):
            action = menu.addAction(text, partial(self._export_all, action_name, names))
            action.setObjectName(action_name)
            action.setEnabled(bool(names))
        return menu

    def _has_data(self, name: str) -> bool:
        return any(spec.store.has_values(spec.series) for spec in self.painter.curves(name))

    def _export_all(self, action: str, names: list[str]) -> None:
        self.grid.maximize("")
        self.export_requested.emit(action, names)

    def _open_menu(self) -> None:
        self.menu().popup(self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft()))

    # --- settings and texts ----------------------------------------------------------------------------

    def restore_state(self, settings: Settings) -> None:
        self.toolbar.restore_state(settings)
        if settings.plots_page == "detail":
            self.detail.setChecked(True)
            self.grid.show_charts(plot_specs.detail_plots(None, comparing=False), scrolls=True)

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
        self._menu_button.setAccessibleName(tr("plots.page_menu"))
        self._menu_button.setToolTip(tr("plots.save_all_plots"))
        self.details_button.setText(tr("plots.details"))
        self.repaint_all()
