"""The page of live plots: figures in large, and the curves of a run, as an overview or all of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QPixmap, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QButtonGroup, QGridLayout, QHBoxLayout, QMenu, QToolTip, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views import computing_words
from app.views.notes import NotesStrip
from app.views.plots import contents, scope
from app.views.plots.board import Board
from app.views.plots.chart import Chart
from app.views.plots.compared import Compared, above
from app.views.plots.controls import Controls
from app.views.plots.overlays import MOST, Overlay
from app.views.plots.painting import Painter, Shown
from app.views.plots.tiles import Tiles
from app.views.widgets import ElidedLabel, Retranslating, SignButton, button, hand_over, named, plain_tip, scroll_area

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.state.computing import Computing
    from app.state.measurements.curve_files import Series
    from app.state.measurements.metrics import Axis, MetricStore
    from app.views.plots.canvas import Canvas

SubPage = Literal["overview", "detail"]
_TOLD_MS: Final = 300
_LOW: Final = 340  # pixels: below, figures would take the room of plots
_WIDE: Final = 880  # pixels: from here on, all controls stand in one row


class PlotsPage(Retranslating):
    """Shows a `MetricStore`. `display` repaints only what changed, and only what can be seen."""

    computing_asked = Signal()  # the person wants to know more of how the run computes
    saving_asked = Signal(str, object)  # copy_picture, save_png, copy_data or save_csv; the names of the plots
    overlays_removed = Signal()  # by the person

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._shown = Shown(tokens)
        self._in_one_row: bool | None = None  # all controls
        self.tiles, self.notes, self.controls, self.board = Tiles(), NotesStrip(tokens), Controls(), Board()
        self.overview, self.detail = button("overview", checkable=True), button("detail", checkable=True)
        self._sub_pages = QButtonGroup(self)
        self.compared = Compared()
        self._menu_button = SignButton("dots", "flat")
        self._computing: Computing | None = None
        self.computing, self.more = ElidedLabel(), button("link")
        self.computing.setObjectName("muted")
        self._later = QTimer(self, interval=0, singleShot=True)
        self.painter = Painter(self.board, self.controls, self._shown, prepare=self._make_canvas, word=self._word)
        self._arrange()
        self._connect()
        self.board.show_charts(contents.OVERVIEW, scrolls=False)
        self.retranslate()

    def _arrange(self) -> None:
        content = named(QWidget(), "scrolled")
        scrolled = QVBoxLayout(content)
        scrolled.setContentsMargins(0, 0, 0, 0)
        scrolled.setSpacing(SPACE)
        scrolled.addWidget(self.notes)
        scrolled.addWidget(self.board, 1)
        self._area = scroll_area(content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addWidget(self.tiles)
        layout.addWidget(self._computing_row())
        self._top = QGridLayout()
        # Empty as yet: PySide makes Python objects for the items of a layout that is added with some. They outlive an
        # item that is moved, and pyqtgraph's painting takes one for its own as soon as its address is used again.
        layout.addLayout(self._top)
        self._fill_first_row()
        layout.addWidget(self.compared)
        layout.addWidget(self._area, 1)

    def _fill_first_row(self) -> None:
        """Which plots, how they are looked at, and what can be done with all of them; two rows where it is narrow."""
        self._segments = QWidget()
        row = QHBoxLayout(self._segments)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        for place, segment in enumerate((self.overview, self.detail)):
            self._sub_pages.addButton(segment, place)
            row.addWidget(segment)
        self.overview.setChecked(True)
        self._top.setSpacing(SPACE)
        self._top.setColumnStretch(1, 1)
        self._top.addWidget(self._segments, 0, 0)
        self._top.addWidget(self._menu_button, 0, 2)
        self._place_controls()

    def _place_controls(self) -> None:
        if (self.width() >= _WIDE) is not self._in_one_row:
            self._in_one_row = self.width() >= _WIDE
            self._top.addWidget(self.controls, *((0, 1, 1, 1) if self._in_one_row else (1, 0, 1, 3)))

    def _computing_row(self) -> QWidget:
        self._line = QWidget()
        row = QHBoxLayout(self._line)
        row.setContentsMargins(SPACE // 2, 0, 0, 0)
        row.setSpacing(SPACE)
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

    # --- canvases, which come after the first paint --------------------------------------------------

    @property
    def charts(self) -> dict[str, Chart]:
        return self.board.charts

    @property
    def is_built(self) -> bool:
        return self.charts["loss"].canvas is not None

    def build(self) -> None:
        """Import pyqtgraph (0.3 s, 50 MB) and make the canvases of the overview, once."""
        if self.is_built:
            return
        for chart in self.charts.values():
            self._make_canvas(chart)
        self.repaint_all()

    def _make_canvas(self, chart: Chart) -> Canvas:
        import app.state.measurements  # noqa: F401 - before pyqtgraph: it says how numpy is imported
        from app.views.plots.canvas import Canvas

        canvas = Canvas(self._shown.tokens)
        canvas.moved.connect(self._on_moved)
        canvas.reset_asked.connect(self.show_all)
        canvas.pointed.connect(partial(self._on_pointed, chart.name))
        canvas.keyed.connect(partial(self._on_key, chart.name))
        chart.take_canvas(canvas)
        return canvas

    def _canvas(self, name: str) -> Canvas:
        canvas = self.charts[name].canvas
        assert canvas is not None
        return canvas

    # --- showing -------------------------------------------------------------------------------------

    def display(self, store: MetricStore, computing: Computing | None = None, name: str = "") -> None:
        """Show the store as it is now, and in one line how the run computes; `name`: what the run is called where it
        is shown beside others. Cheap when nothing changed."""
        self._computing = computing or self._computing
        shown = self._shown
        if name and name != shown.name:
            shown.name = name
            self._show_names()
            self._word_all()  # "press Start" is no advice once a run has begun
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
            told = computing_words.summary(self._computing.of_run, self._computing.compile_s)
            self.computing.setText(told)
            self._line.setVisible(bool(told))
        if self.is_built:
            self._paint()

    def overlay(self, runs: list[Overlay]) -> None:
        """Show these runs beside the one on show, in place of those before."""
        self._shown.runs = runs[:MOST]
        self._show_names()
        self._refresh()

    @property
    def overlaid(self) -> list[Overlay]:
        """The runs beside the one on show."""
        return list(self._shown.runs)

    def _show_names(self) -> None:
        self.compared.display(self._shown.own, self._shown.runs, self._shown.tokens)

    def repaint_all(self) -> None:
        self.painter.forget()
        if self._shown.store is not None:
            self.display(self._shown.store)

    def show_all(self) -> None:
        """Back to the whole run, following it as it grows."""
        self._look_at(None)

    def _look_at(self, zoom: tuple[float, float] | None) -> None:
        self._shown.zoom = zoom
        self.controls.fit.setEnabled(zoom is not None)
        self._refresh()

    def _refresh(self) -> None:
        """Paint what looks different now."""
        if self._shown.store is not None and self.is_built and self.isVisible():
            self._paint()

    def _paint(self) -> None:
        """Show the charts of this page, as far as they are not yet."""
        shown, whole = self._shown, self.detail.isChecked()
        if shown.store is not None:
            comparing = bool(shown.runs)
            names = contents.detail(shown.store, comparing=comparing) if whole else contents.OVERVIEW
            self.board.show_charts(names, scrolls=whole)
            self.painter.paint()

    def retheme(self, tokens: Tokens) -> None:
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
        self.tiles.setVisible(event.size().height() >= _LOW)  # a low window is for the plots
        self._later.start()

    # --- reading values --------------------------------------------------------------------------------

    def _read_at(self, x: float | None, chart: str) -> None:
        """Show all values at this place of the axis; the words below the line stand in one plot."""
        cross = None if x is None else (x, chart)
        if cross != self._shown.cross:
            self._shown.cross = cross
            self._refresh()

    def _on_pointed(self, chart: str, x: float | None) -> None:
        self._read_at(x, chart)

    def _on_key(self, chart: str, key: str) -> None:
        shown = self._shown
        if shown.store is None:
            return
        if key == "maximise" or (key == "escape" and shown.cross is None and self.board.enlarged):
            self._on_asked(chart, "maximise")
        elif key == "escape":
            self._read_at(None, chart)
        else:
            view = self.painter.view()
            whole = scope.whole(shown.stores, view.axis)
            then = scope.moved(scope.Looking(view.low, view.high, shown.cross[0] if shown.cross else None), key, whole)
            if (then.low, then.high) != (view.low, view.high):
                self._look_at(None if (then.low, then.high) == whole else (then.low, then.high))
            self._read_at(then.cross, chart)

    # --- what is remembered ---------------------------------------------------------------------------

    def restore(self, smoothing: float, *, log_scale: bool, clip: bool, axis: Axis, sub_page: SubPage) -> None:
        """Take what was chosen the last time."""
        self.controls.restore(smoothing, log_scale=log_scale, clip=clip, axis=axis)
        if sub_page == "detail":
            self.detail.setChecked(True)
            self.board.show_charts(contents.detail(None, comparing=False), scrolls=True)

    @property
    def sub_page(self) -> SubPage:
        return "detail" if self.detail.isChecked() else "overview"

    # --- controls ------------------------------------------------------------------------------------

    def _on_sub_page(self) -> None:
        self.board.enlarge("")
        self._area.verticalScrollBar().setValue(0)
        if self.is_built:
            self._paint()
        self._later.start()  # what is laid out only now

    def _on_moved(self, low: float, high: float) -> None:
        self._look_at((low, high))

    def _on_axis(self) -> None:
        self._shown.cross = None
        self.show_all()

    def _on_remove(self) -> None:
        hand_over(self.compared, self._menu_button)
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
        """A plot as it is seen, or would be further down the page, sharp enough for a slide."""
        chart, shown = self.charts[name], self._shown
        if self.is_built:
            self.painter.paint_chart(chart, self.painter.view())
        picture = chart.picture()
        return above(picture, shown.own, shown.runs, shown.tokens) if shown.runs else picture

    @property
    def run_name(self) -> str:
        """Of the run on show; empty where there is none."""
        return self._shown.name

    def say(self, text: str) -> None:
        """A word at the menu of all plots, gone by itself; a dialog that is just closing would take it along."""
        at = self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft())
        QTimer.singleShot(_TOLD_MS, self, lambda: QToolTip.showText(at, plain_tip(text), self._menu_button))

    def _with_data(self) -> list[str]:
        """The plots of this page that have something to show."""
        if not self.is_built:
            return []
        from app.views.plots import drawing

        return [name for name in self.board.shown if drawing.has_data(self.painter.lines(name))]

    def series(self, name: str) -> list[Series]:
        """The curves of a plot, all of each, in the plot's unit."""
        from app.state.measurements.curve_files import Series
        from app.views.plots import drawing

        if self._shown.store is None:
            return []
        view, unit = self.painter.view(), contents.title(name, self._shown.store)
        made = []
        for line in self.painter.lines(name):
            found = drawing.curve(line, view)
            if found is not None:
                made.append(Series(scope.column_title(unit, line, view.weight), found, line.scale, line.run))
        return made

    def menu(self) -> QMenu:
        """What can be done with all plots of this page."""
        made = QMenu(self)
        made.aboutToHide.connect(made.deleteLater)
        there = self._with_data()
        for text, what in (
            (self.tr("Save all plots as PNG…"), "save_png"),
            (self.tr("Save all data as CSV…"), "save_csv"),
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
        empty = self.tr("No data yet")
        if chart.name == "loss" and not self._shown.name:
            empty = self.tr("No data yet. Choose a preset and data at the left, then press Start.")
        chart.set_words(contents.title(chart.name, self._shown.store), empty)

    def _word_all(self) -> None:
        for chart in self.charts.values():
            self._word(chart)

    def retranslate(self) -> None:
        self._word_all()
        self.overview.setText(self.tr("Overview"))
        self.detail.setText(self.tr("Detail"))
        self.detail.setToolTip(self.tr("Also the time of a step, GPUs, CPU and memory"))
        self._menu_button.setAccessibleName(self.tr("Menu of all plots"))
        self._menu_button.setToolTip(self.tr("Save all plots"))
        self.more.setText(self.tr("Details"))
        self.repaint_all()
