"""The page of live plots: figures in large, loss, throughput, memory, learning rate, gradient norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QGridLayout, QHBoxLayout, QSizePolicy, QSlider, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views import computing_words
from app.views.notes import NotesStrip
from app.views.plots.chart import Chart, LegendEntry
from app.views.plots.tiles import Tiles
from app.views.widgets import ElidedLabel, QuietCombo, Retranslating, button, label, named, scroll_area

if TYPE_CHECKING:  # numpy takes 0.1 s to import: nothing before the first paint needs it
    from app.state.computing import Computing
    from app.state.metrics import Array, Axis, MetricStore
    from app.views.plots.canvas import Canvas

_AXES: Final[tuple[Axis, ...]] = ("step", "tokens", "time")
_GIB: Final = 1024**3
_GPU_TOKENS: Final = ("curve_a", "curve_b", "curve_c", "curve_d")
_PLACES: Final = {  # row, column, row span, column span
    "loss": (0, 0, 1, 2),
    "speed": (1, 0, 1, 1),
    "memory": (1, 1, 1, 1),
    "learning_rate": (2, 0, 1, 1),
    "grad_norm": (2, 1, 1, 1),
}


class PlotsPage(Retranslating):
    """Shows a `MetricStore`. `display` repaints only what changed, and only while the page can be seen."""

    computing_asked = Signal()  # the person wants to know more of how the run computes

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._store: MetricStore | None = None
        self._painted: dict[str, object] = {}
        self._zoom: tuple[float, float] | None = None  # the part of the x axis that the person looks at
        self.tiles, self.notes = Tiles(), NotesStrip(tokens)
        self.charts = {name: Chart(name) for name in _PLACES}
        self.smoothing = named(QSlider(Qt.Orientation.Horizontal), "smoothing")
        self.smoothing.setMaximum(99)
        self.smoothing.setFixedWidth(120)
        self._smoothing_label = label()
        self.log_scale = named(QCheckBox(), "logScale")
        self.axis = QuietCombo()
        self.axis.setObjectName("xAxis")
        self.axis.addItems(list(_AXES))
        self._axis_label = label()
        self._fit = button("showAll")
        self._fit.setEnabled(False)
        self._computing: Computing | None = None
        self.computing, self.more = ElidedLabel(), button("flat")
        self.computing.setObjectName("muted")
        self._arrange()
        self.smoothing.valueChanged.connect(self._on_smoothing)
        self.log_scale.toggled.connect(self._on_log)
        self.axis.currentIndexChanged.connect(self._on_axis)
        self._fit.clicked.connect(self.show_all)
        self.more.clicked.connect(self.computing_asked)
        self.retranslate()

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setSpacing(SPACE)
        for widget in (self._smoothing_label, self.smoothing):
            bar.addWidget(widget)
        bar.addSpacing(SPACE)
        bar.addWidget(self.log_scale)
        bar.addStretch(1)
        for last in (self._axis_label, self.axis, self._fit):
            bar.addWidget(last)
        content = named(QWidget(), "scrolled")
        scrolled = QVBoxLayout(content)
        scrolled.setContentsMargins(0, 0, 0, 0)
        scrolled.setSpacing(SPACE)
        charts = QWidget()
        scrolled.addWidget(self.notes)
        scrolled.addWidget(charts, 1)
        grid = QGridLayout(charts)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(SPACE)
        for name, place in _PLACES.items():
            grid.addWidget(self.charts[name], *place)
        for row, stretch in enumerate((16, 10, 10)):
            grid.setRowStretch(row, stretch)
            grid.setRowMinimumHeight(row, 11 * stretch)
        # As high as there is room beside the notes, whatever the canvases would like; a low window scrolls.
        charts.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        charts.setMinimumHeight(grid.minimumSize().height())
        for column in (0, 1):
            grid.setColumnStretch(column, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addWidget(self.tiles)
        layout.addWidget(self._computing_row())
        layout.addLayout(bar)
        layout.addWidget(scroll_area(content), 1)

    def _computing_row(self) -> QWidget:
        self._line = QWidget()
        row = QHBoxLayout(self._line)
        row.setContentsMargins(SPACE // 2, 0, 0, 0)
        row.setSpacing(SPACE)
        row.addWidget(self.computing, 1)
        row.addWidget(self.more)
        self._line.hide()
        return self._line

    # --- canvases, which come after the first paint --------------------------------------------------

    @property
    def is_built(self) -> bool:
        return self.charts["loss"].canvas is not None

    def build(self) -> None:
        """Import pyqtgraph (0.3 s, 50 MB) and make the canvases, once."""
        if self.is_built:
            return
        from app.views.plots.canvas import Canvas

        for chart in self.charts.values():
            chart.take_canvas(Canvas(self._tokens))
        loss = self._canvas("loss")
        loss.add_curve("raw", "curve_a", "faint")
        loss.add_curve("train", "curve_a")
        loss.add_curve("eval", "curve_b", "line")
        loss.add_mark("checkpoint", "curve_c")
        loss.add_mark("best", "curve_b")
        loss.add_mark("bad", "bad")
        loss.set_log(self.log_scale.isChecked())
        self._canvas("speed").add_curve("tokens_per_s", "curve_a")
        for gpu, token in enumerate(_GPU_TOKENS):
            self._canvas("memory").add_curve(str(gpu), token)
        self._canvas("memory").add_curve("total", "muted", "dashed")
        self._canvas("learning_rate").add_curve("learning_rate", "curve_a")
        self._canvas("grad_norm").add_curve("grad_norm", "curve_a")
        for name in self.charts:
            self._canvas(name).moved.connect(self._on_moved)
            self._canvas(name).reset_asked.connect(self.show_all)
        self.repaint_all()

    def _canvas(self, name: str) -> Canvas:
        canvas = self.charts[name].canvas
        assert canvas is not None
        return canvas

    # --- showing -------------------------------------------------------------------------------------

    def display(self, store: MetricStore, computing: Computing | None = None) -> None:
        """Show the store as it is now, and in one line how the run computes. Cheap when nothing changed."""
        self._computing = computing or self._computing
        if store is not self._store:
            self._store = store
            self._painted.clear()
        if not self.isVisible():
            return
        if self._stale("tiles", store.version("train_loss"), store.version("rss"), store.version("eval_loss")):
            self.tiles.display(store)
            self.tiles.retranslate()
        if self._computing is not None and self._stale("computing", id(self._computing), self._computing.version):
            told = computing_words.summary(self._computing.of_run, self._computing.compile_s)
            self.computing.setText(told)
            self._line.setVisible(bool(told))
            self.retranslate()  # "press Start" is no advice once a run has begun
        if self.is_built:
            self._paint(store)

    def repaint_all(self) -> None:
        self._painted.clear()
        if self._store is not None:
            self.display(self._store)

    def show_all(self) -> None:
        """Back to the whole run, following it as it grows."""
        self._zoom = None
        self._fit.setEnabled(False)
        if self._store is not None:
            self._show_range(self._store)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.notes.retheme(tokens)
        for chart in self.charts.values():
            if chart.canvas is not None:
                chart.canvas.retheme(tokens)
        self._show_legends()
        self.repaint_all()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        QTimer.singleShot(0, self.repaint_all)

    def _stale(self, name: str, *versions: object) -> bool:
        if self._painted.get(name) == versions:
            return False
        self._painted[name] = versions
        return True

    def _paint(self, store: MetricStore) -> None:
        marks = (len(store.checkpoints()), len(store.bad_steps()))
        if self._stale("loss", store.version("train_loss"), store.version("eval_loss"), *marks):
            self._paint_loss(store)
        if self._stale("steps", store.version("train_loss")):
            self._paint_one(store, "speed", "tokens_per_s")
            self._paint_one(store, "learning_rate", "learning_rate")
            self._paint_one(store, "grad_norm", "grad_norm")
        if self._stale("memory", store.version("rss"), *(store.version(f"vram_used.{gpu}") for gpu in store.gpus())):
            self._paint_memory(store)
        self._show_range(store)

    def _show_range(self, store: MetricStore) -> None:
        if not self.is_built:
            return
        ends = [store.series(name, self._axis)[0][-1:] for name in ("train_loss", "eval_loss", "rss")]
        end = max((float(x[0]) for x in ends if len(x)), default=1.0)
        low, high = self._zoom or (0.0, end * 1.02)
        for name in self.charts:
            self._canvas(name).show_x(low, max(high, low + 1e-9))

    @property
    def _axis(self) -> Axis:
        return _AXES[max(0, self.axis.currentIndex())]

    def _paint_one(self, store: MetricStore, chart: str, series: str) -> None:
        x, y = store.series(series, self._axis)
        self._canvas(chart).show_curve(series, x, y)
        self.charts[chart].show_data(store.last(series) is not None)

    def _paint_loss(self, store: MetricStore) -> None:
        canvas, axis = self._canvas("loss"), self._axis
        x, y = store.series("train_loss", axis)
        curve = store.curve("train_loss", self.smoothing.value() / 100)
        smooth = y if curve is None else curve.y
        canvas.show_curve("raw", x, y)
        canvas.show_curve("train", x, smooth)
        eval_x, eval_y = store.series("eval_loss", axis)
        canvas.show_curve("eval", eval_x, eval_y)
        marks = store.checkpoints() if len(x) else []
        places = [mark.x(axis) for mark in marks]
        canvas.show_marks("checkpoint", places, [_height(x, smooth, place) for place in places])
        bad = [mark.x(axis) for mark in store.bad_steps()]
        canvas.show_marks("bad", bad, [_height(x, smooth, place) for place in bad])
        if self._stale("loss words", len(bad) > 0):
            self._show_legends()
        best = store.best_eval()
        canvas.show_marks("best", [best.x(axis)] if best else [], [best.value or 0.0] if best else [])
        self.charts["loss"].show_data(len(x) > 0 or len(eval_x) > 0)

    def _paint_memory(self, store: MetricStore) -> None:
        canvas, gpus = self._canvas("memory"), store.gpus()[: len(_GPU_TOKENS)]
        names = [f"vram_used.{gpu}" for gpu in gpus] or ["rss"]
        there = False
        for place in range(len(_GPU_TOKENS)):
            x, y = store.series(names[place] if place < len(names) else "", self._axis)
            canvas.show_curve(str(place), x, y / _GIB)
            there = there or len(x) > 0
        x, y = store.series(f"vram_total.{gpus[0]}" if gpus else "", self._axis)
        canvas.show_curve("total", x, y / _GIB)
        self.charts["memory"].show_data(there)
        if self._stale("memory words", tuple(gpus)):
            self.retranslate()

    # --- what is remembered ---------------------------------------------------------------------------

    def restore(self, smoothing: float, *, log_scale: bool, axis: Axis) -> None:
        """Take what was chosen the last time."""
        self.smoothing.setValue(round(100 * smoothing))
        self.log_scale.setChecked(log_scale)
        self.axis.setCurrentIndex(_AXES.index(axis))

    def choices(self) -> tuple[float, bool, Axis]:
        """Smoothing, log scale, axis: for the settings."""
        return self.smoothing.value() / 100, self.log_scale.isChecked(), self._axis

    # --- controls ------------------------------------------------------------------------------------

    def _on_smoothing(self) -> None:
        self._painted.pop("loss", None)
        self.retranslate()
        if self._store is not None:
            self.display(self._store)

    def _on_log(self, on: bool) -> None:
        if self.is_built:
            self._canvas("loss").set_log(on)
            self.repaint_all()

    def _on_moved(self, low: float, high: float) -> None:
        self._zoom = (low, high)
        self._fit.setEnabled(True)
        if self._store is not None:
            self._show_range(self._store)

    def _on_axis(self) -> None:
        self.retranslate()
        self.repaint_all()
        self.show_all()

    # --- words ---------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        on_gpu = self._store is not None and bool(self._store.gpus())
        empty = self.tr("No data yet")
        titles = {
            "loss": self.tr("Loss"),
            "speed": self.tr("Throughput (tokens/s)"),
            "memory": self.tr("VRAM (GiB)") if on_gpu else self.tr("Trainer's memory (GiB)"),
            "learning_rate": self.tr("Learning rate"),
            "grad_norm": self.tr("Gradient norm"),
        }
        for name, chart in self.charts.items():
            chart.set_words(titles[name], empty)
        start = self.tr("No data yet. Choose a preset and data at the left, then press Start.")
        begun = self._computing is not None and self._computing.version > 0
        self.charts["loss"].set_words(titles["loss"], empty if begun else start)
        self._smoothing_label.setText(self.tr("Smoothing"))
        self.smoothing.setAccessibleName(self.tr("Smoothing"))
        self.smoothing.setToolTip(f"{self.smoothing.value() / 100:.2f}")
        self.log_scale.setText(self.tr("Log scale"))
        self._axis_label.setText(self.tr("Against"))
        self.axis.setAccessibleName(self.tr("Horizontal axis"))
        for row, text in enumerate((self.tr("steps"), self.tr("tokens"), self.tr("seconds"))):
            self.axis.setItemText(row, text)
        self._fit.setText(self.tr("Show all"))
        self._fit.setToolTip(self.tr("Drag to move, Ctrl and the wheel to zoom; a double click shows all again."))
        self.more.setText(self.tr("Details"))
        self._painted.pop("computing", None)
        self._show_legends()

    def _show_legends(self) -> None:
        loss: list[LegendEntry] = [
            ("line", "curve_a", self.tr("train")),
            ("dots", "curve_b", self.tr("eval")),
            ("best", "curve_b", self.tr("best eval")),
            ("checkpoint", "curve_c", self.tr("checkpoint")),
        ]
        if self._store is not None and self._store.bad_steps():
            loss.append(("bad", "bad", self.tr("bad step")))
        self.charts["loss"].set_legend(loss, self._tokens)
        gpus = self._store.gpus()[: len(_GPU_TOKENS)] if self._store else []
        memory: list[LegendEntry] = [
            ("line", token, self.tr("GPU {index}").format(index=gpu))
            for gpu, token in zip(gpus, _GPU_TOKENS, strict=False)
        ]
        if gpus:
            memory.append(("dashed", "muted", self.tr("total")))
        self.charts["memory"].set_legend(memory, self._tokens)


def _height(x: Array, y: Array, place: float) -> float:
    """Where a mark sits on a curve."""
    import numpy as np

    return float(np.interp(place, x, y))
