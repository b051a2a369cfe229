"""The Plots page: key figures, and the curves of a run as an overview or in detail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QPixmap, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QButtonGroup, QGridLayout, QHBoxLayout, QMenu, QToolTip, QVBoxLayout, QWidget

from app.pages.page import Page, ShownRun
from app.pages.performance import execution_texts
from app.pages.plots import plot_specs, view_range
from app.pages.plots.advice_list import AdvicePanel
from app.pages.plots.chart import Chart
from app.pages.plots.comparison_bar import Compared, add_run_names
from app.pages.plots.overlays import MOST, Overlay
from app.pages.plots.plot_grid import Board
from app.pages.plots.repaint_scheduler import Painter, Shown
from app.pages.plots.tiles import Tiles
from app.pages.plots.toolbar import Controls
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
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

_TOOLTIP_MS: Final = 300
_MIN_HEIGHT_WITH_TILES: Final = 340  # pixels
_MIN_WIDTH_OF_ONE_ROW: Final = 880  # pixels; below, the controls have a row of their own


class PlotsPage(Page):
    """Shows a `MetricStore`. `display` repaints only what changed and is visible."""

    computing_asked = Signal()  # open the page with the details of the fast paths
    saving_asked = Signal(str, object)  # copy_picture, save_png, copy_data or save_csv; plot names
    overlays_removed = Signal()  # by the person

    def __init__(self, tokens: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._shown = Shown(tokens)
        self._in_one_row: bool | None = None
        self.tiles, self.notes, self.controls, self.board = Tiles(), AdvicePanel(tokens), Controls(), Board()
        self.overview, self.detail = push_button("overview", checkable=True), push_button("detail", checkable=True)
        self._sub_pages = QButtonGroup(self)
        self.compared = Compared()
        self._menu_button = IconButton("dots", "flat")
        self._computing: ExecutionInfo | None = None
        self.computing, self.more = ElidedLabel(), push_button("link")
        self.computing.setObjectName("muted")
        self._later = QTimer(self, interval=0, singleShot=True)
        self.painter = Painter(self.board, self.controls, self._shown, prepare=self._make_canvas, word=self._word)
        self._arrange()
        self._connect()
        self.board.show_charts(plot_specs.OVERVIEW, scrolls=False)
        self.retranslate()

    def _arrange(self) -> None:
        content = set_object_name(QWidget(), "scrolled")
        scrolled = QVBoxLayout(content)
        scrolled.setContentsMargins(0, 0, 0, 0)
        scrolled.setSpacing(SPACING)
        scrolled.addWidget(self.notes)
        scrolled.addWidget(self.board, 1)
        self._area = scroll_area(content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addWidget(self.tiles)
        layout.addWidget(self._computing_row())
        self._top = QGridLayout()
        # Added while empty: PySide wraps the items of a filled layout in Python objects that outlive moved items, and
        # pyqtgraph then mistakes such a wrapper for one of its own objects at the same address.
        layout.addLayout(self._top)
        self._fill_first_row()
        layout.addWidget(self.compared)
        layout.addWidget(self._area, 1)

    def _fill_first_row(self) -> None:
        """Sub-pages, controls and the menu of all plots; in two rows on a narrow page."""
        self._segments = QWidget()
        row = QHBoxLayout(self._segments)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        for place, segment in enumerate((self.overview, self.detail)):
            self._sub_pages.addButton(segment, place)
            row.addWidget(segment)
        self.overview.setChecked(True)
        self._top.setSpacing(SPACING)
        self._top.setColumnStretch(1, 1)
        self._top.addWidget(self._segments, 0, 0)
        self._top.addWidget(self._menu_button, 0, 2)
        self._place_controls()

    def _place_controls(self) -> None:
        if (self.width() >= _MIN_WIDTH_OF_ONE_ROW) is not self._in_one_row:
            self._in_one_row = self.width() >= _MIN_WIDTH_OF_ONE_ROW
            self._top.addWidget(self.controls, *((0, 1, 1, 1) if self._in_one_row else (1, 0, 1, 3)))

    def _computing_row(self) -> QWidget:
        self._line = QWidget()
        row = QHBoxLayout(self._line)
        row.setContentsMargins(SPACING // 2, 0, 0, 0)
        row.setSpacing(SPACING)
        row.addWidget(self.computing, 1)
        row.addWidget(self.more)
        self._line.hide()
        return self._line

    def _connect(self) -> None:
        self._sub_pages.idClicked.connect(self._on_sub_page)
        self.compared.removed.connect(self._on_remove)
        self._menu_button.clicked.connect(self._open_menu)
        self.controls.changed.connect(self._refresh)
        self.controls.axis_changed.connect(self._on_axis)
        self.controls.all_asked.connect(self.show_all)
        self.more.clicked.connect(self.computing_asked)
        self.board.made.connect(self._on_chart)
        self._later.timeout.connect(self._paint)
        self._area.verticalScrollBar().valueChanged.connect(lambda: self._later.start())

    def _on_chart(self, chart: Chart) -> None:
        chart.asked.connect(partial(self._on_asked, chart.name))
        self._word(chart)

    # --- canvases, built after the first paint --------------------------------------------------

    @property
    def charts(self) -> dict[str, Chart]:
        return self.board.charts

    @property
    def is_built(self) -> bool:
        return self.charts["loss"].canvas is not None

    def build(self) -> None:
        """Import pyqtgraph (0.3 s, 50 MB) and build the canvases of the overview once."""
        if self.is_built:
            return
        for chart in self.charts.values():
            self._make_canvas(chart)
        self.repaint_all()

    def _make_canvas(self, chart: Chart) -> Canvas:
        import app.core.metrics  # noqa: F401 - sets how numpy is imported, before pyqtgraph imports it
        from app.pages.plots.canvas import Canvas

        canvas = Canvas(self._shown.tokens)
        canvas.moved.connect(lambda low, high: self._look_at((low, high)))
        canvas.reset_asked.connect(self.show_all)
        canvas.pointed.connect(partial(self._read_at, chart.name))
        canvas.keyed.connect(partial(self._on_key, chart.name))
        chart.take_canvas(canvas)
        return canvas

    def _canvas(self, name: str) -> Canvas:
        canvas = self.charts[name].canvas
        assert canvas is not None
        return canvas

    # --- showing -------------------------------------------------------------------------------------

    def display(self, store: MetricStore, computing: ExecutionInfo | None = None, name: str = "") -> None:
        """Show the store, and the fast paths of the run in one line. `name`: the name of the run beside overlays.
        Cheap if nothing changed."""
        self._computing = computing or self._computing
        shown = self._shown
        if name and name != shown.name:
            shown.name = name
            self._show_names()
            self._word_all()  # the empty plots no longer advise to press Start
        if store is not shown.store:
            shown.store, shown.cross = store, None
            self.painter.forget()
        if not self.isVisible():
            return
        stale = self.painter.stale
        if stale("tiles", store.version("train_loss"), store.version("rss"), store.version("eval_loss")):
            self.tiles.display(store)
            self.tiles.retranslate()
        if self._computing is not None and stale("computing", id(self._computing), self._computing.version):
            told = execution_texts.format_execution(self._computing.run_fast_paths, self._computing.compile_s)
            self.computing.setText(told)
            self._line.setVisible(bool(told))
        if self.is_built:
            self._paint()

    def overlay(self, runs: list[Overlay]) -> None:
        """Replace the overlaid runs."""
        self._shown.runs = runs[:MOST]
        self._show_names()
        self._refresh()

    @property
    def overlaid(self) -> list[Overlay]:
        """The overlaid runs."""
        return list(self._shown.runs)

    def _show_names(self) -> None:
        self.compared.display(self._shown.own, self._shown.runs, self._shown.tokens)

    def repaint_all(self) -> None:
        self.painter.forget()
        if self._shown.store is not None:
            self.display(self._shown.store)

    def show_all(self) -> None:
        """Show the whole run and follow it as it grows."""
        self._look_at(None)

    def _look_at(self, zoom: tuple[float, float] | None) -> None:
        self._shown.zoom = zoom
        self.controls.fit.setEnabled(zoom is not None)
        self._refresh()

    def _refresh(self) -> None:
        """Repaint what changed."""
        if self._shown.store is not None and self.is_built and self.isVisible():
            self._paint()

    def _paint(self) -> None:
        """Show the charts of this sub-page and repaint what changed."""
        shown, whole = self._shown, self.detail.isChecked()
        if shown.store is not None:
            comparing = bool(shown.runs)
            names = plot_specs.detail(shown.store, comparing=comparing) if whole else plot_specs.OVERVIEW
            self.board.show_charts(names, scrolls=whole)
            self.painter.paint()

    def retheme(self, tokens: Palette) -> None:
        self._shown.tokens = tokens
        self.notes.retheme(tokens)
        for chart in self.charts.values():
            if chart.canvas is not None:
                chart.canvas.retheme(tokens)
        self._show_names()
        self.repaint_all()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        QTimer.singleShot(0, self.repaint_all)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._place_controls()
        self.tiles.setVisible(event.size().height() >= _MIN_HEIGHT_WITH_TILES)
        self._later.start()

    # --- reading values --------------------------------------------------------------------------------

    def _read_at(self, chart: str, x: float | None) -> None:
        """Show all values at this position of the axis; the line has its label in one plot."""
        cross = None if x is None else (x, chart)
        if cross != self._shown.cross:
            self._shown.cross = cross
            self._refresh()

    def _on_key(self, chart: str, key: str) -> None:
        shown = self._shown
        if shown.store is None:
            return
        if key == "maximise" or (key == "escape" and shown.cross is None and self.board.enlarged):
            self._on_asked(chart, "maximise")
        elif key == "escape":
            self._read_at(chart, None)
        else:
            view = self.painter.view()
            whole = view_range.whole(shown.stores, view.axis)
            then = view_range.moved(
                view_range.Looking(view.low, view.high, shown.cross[0] if shown.cross else None), key, whole
            )
            if (then.low, then.high) != (view.low, view.high):
                self._look_at(None if (then.low, then.high) == whole else (then.low, then.high))
            self._read_at(chart, then.cross)

    # --- saved settings ---------------------------------------------------------------------------

    def show_run(self, run: ShownRun) -> None:
        self.display(run.record.metrics, run.record.execution, run.name)

    def restore_state(self, settings: Settings) -> None:
        self.controls.restore(
            settings.smoothing, log_scale=settings.log_scale, clip=settings.clip_outliers, axis=settings.x_axis
        )
        if settings.plots_page == "detail":
            self.detail.setChecked(True)
            self.board.show_charts(plot_specs.detail(None, comparing=False), scrolls=True)

    def save_state(self, settings: Settings) -> None:
        settings.smoothing, settings.x_axis = self.controls.weight, self.controls.axis
        settings.log_scale, settings.clip_outliers = self.controls.log_scale.isChecked(), self.controls.clip.isChecked()
        settings.plots_page = "detail" if self.detail.isChecked() else "overview"

    # --- controls ------------------------------------------------------------------------------------

    def _on_sub_page(self) -> None:
        self.board.enlarge("")
        self._area.verticalScrollBar().setValue(0)
        if self.is_built:
            self._paint()
        self._later.start()  # after the new layout

    def _on_axis(self) -> None:
        self._shown.cross = None
        self.show_all()

    def _on_remove(self) -> None:
        move_focus(self.compared, self._menu_button)
        self.overlay([])
        self.overlays_removed.emit()

    def _on_asked(self, name: str, what: str) -> None:
        if what != "maximise":
            self.saving_asked.emit(what, [name])
            return
        self.board.enlarge("" if self.board.enlarged else name)
        canvas = self.charts[name].canvas
        if canvas is not None:
            canvas.setFocus()
        self._later.start()

    # --- pictures and data -----------------------------------------------------------------------------

    def picture(self, name: str) -> QPixmap:
        """A picture of a plot with two pixels for each on screen, also of a plot outside the visible area."""
        chart, shown = self.charts[name], self._shown
        if self.is_built:
            self.painter.paint_chart(chart, self.painter.view())
        picture = chart.picture()
        return add_run_names(picture, shown.own, shown.runs, shown.tokens) if shown.runs else picture

    @property
    def run_name(self) -> str:
        """Name of the run on show; empty if there is none."""
        return self._shown.name

    def say(self, text: str) -> None:
        """Show a tooltip at the menu of all plots, delayed because a closing dialog would hide it."""
        at = self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft())
        QTimer.singleShot(_TOOLTIP_MS, self, lambda: QToolTip.showText(at, plain_tooltip(text), self._menu_button))

    def _with_data(self) -> list[str]:
        """The plots of this sub-page that have data."""
        if not self.is_built:
            return []
        from app.pages.plots import plot_data

        return [name for name in self.board.shown if plot_data.has_data(self.painter.lines(name))]

    def series(self, name: str) -> list[CsvColumn]:
        """The complete curves of a plot in its unit."""
        from app.core.metrics.csv_export import CsvColumn
        from app.pages.plots import plot_data

        if self._shown.store is None:
            return []
        view, unit = self.painter.view(), plot_specs.title(name, self._shown.store)
        made = []
        for line in self.painter.lines(name):
            found = plot_data.curve(line, view)
            if found is not None:
                made.append(CsvColumn(view_range.column_title(unit, line, view.weight), found, line.scale, line.run))
        return made

    def menu(self) -> QMenu:
        """The menu of all plots of this sub-page."""
        made = QMenu(self)
        made.aboutToHide.connect(made.deleteLater)
        there = self._with_data()
        for text, what in (
            (tr("plots.save_all_plots_as_png"), "save_png"),
            (tr("plots.save_all_data_as_csv"), "save_csv"),
        ):
            action = made.addAction(text)
            action.setObjectName(what)
            action.setEnabled(bool(there))
            action.triggered.connect(partial(self._save, what, there))
        return made

    def _save(self, what: str, names: list[str], _checked: bool = False) -> None:
        self.board.enlarge("")
        self.saving_asked.emit(what, names)

    def _open_menu(self) -> None:
        self.menu().popup(self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft()))

    # --- words ---------------------------------------------------------------------------------------

    def _word(self, chart: Chart) -> None:
        empty = tr("plots.no_data_yet")
        if chart.name == "loss" and not self._shown.name:
            empty = tr("plots.no_data_yet_choose_preset")
        chart.set_words(plot_specs.title(chart.name, self._shown.store), empty)

    def _word_all(self) -> None:
        for chart in self.charts.values():
            self._word(chart)

    def retranslate(self) -> None:
        self._word_all()
        self.overview.setText(tr("plots.overview"))
        self.detail.setText(tr("plots.detail"))
        self.detail.setToolTip(tr("plots.also_time_step_gpus_cpu"))
        self._menu_button.setAccessibleName(tr("plots.menu_of_all_plots"))
        self._menu_button.setToolTip(tr("plots.save_all_plots"))
        self.more.setText(tr("plots.details"))
        self.repaint_all()
