"""The page that shows what the chosen data holds, and looks at it on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from app.state.looks import Look
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.data import figures
from app.views.data.sample_view import SamplesCard
from app.views.data.sources_table import SourcesTable
from app.views.plots.chart import Chart
from app.views.plots.legend import Entry
from app.views.plots.tiles import Tile
from app.views.widgets import ElidedLabel, Retranslating, button, card, fill, label, named, plain_tip, put, scroll_area
from trainer_core.protocol import DataReport, Notice, Ready

if TYPE_CHECKING:
    from app.views.data.histogram import Histogram

_FINE = 1000  # steps of the progress bar
_HISTOGRAM_HEIGHT = 230
_NARROW = 760  # pixels


@dataclass(frozen=True, slots=True)
class DataState:
    """Everything the page shows."""

    look: Look[DataReport] | None = None  # the report to show
    current: bool = False  # it is of the configuration in the form
    running: Look[DataReport] | None = None  # the look that is under way
    cancelling: bool = False
    failure: str = ""  # why the last look ended without a report
    blocked: str = ""  # why the data cannot be looked at now
    ready: Ready | None = None  # what the run on show trains on


class DataPage(Retranslating):
    """Shows a `DataState`."""

    look_asked = Signal()
    cancel_asked = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._state = DataState()
        self._report: DataReport | None = None  # the one that is painted
        self._said: list[Notice] | None = None
        self._begun: DataReport | None = None  # the one that was shown from its beginning
        self.look, self.cancel = button("lookAtData"), button("cancelLook")
        self.status, self.hint, self.failure = ElidedLabel(), label("warnText", wrap=True), label("error", wrap=True)
        self.status.setObjectName("muted")
        self.run = ElidedLabel()
        self.run.setObjectName("muted")
        self.bar = QProgressBar(textVisible=False, maximum=_FINE)
        self._empty = label("muted", wrap=True, centred=True)
        self._empty.setContentsMargins(10 * SPACE, 0, 10 * SPACE, 10 * SPACE)
        self.tiles = {name: Tile(name) for name in figures.TILES}
        self.notes = label("warnText", wrap=True)
        self.notes.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.sources = SourcesTable()
        self.chart = Chart("lengths")
        self.histogram: Histogram | None = None
        self.samples = SamplesCard(tokens)
        self._rows, self._tiles = QGridLayout(), QGridLayout()
        self._middle = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._narrow: bool | None = None
        self._facts_title = label("section")
        self._arrange()
        self.look.clicked.connect(self.look_asked)
        self.cancel.clicked.connect(self.cancel_asked)
        self.retranslate()

    # --- layout ----------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACE)
        top.addWidget(self.look)
        top.addWidget(self.cancel)
        top.addWidget(self.status, 1)
        self._content = named(QWidget(), "scrolled")
        content = QVBoxLayout(self._content)
        content.setContentsMargins(0, 0, SPACE // 2, 0)
        content.setSpacing(SPACE)
        self._tiles.setSpacing(SPACE)
        inner = QVBoxLayout()
        inner.addWidget(self.notes)
        self._notes_card = card(inner)
        content.addLayout(self._tiles)
        content.addWidget(self._notes_card)
        content.addWidget(self.sources)
        self._arrange_middle()
        content.addLayout(self._middle)
        content.addWidget(self.samples)
        content.addStretch(1)
        self._area = scroll_area(self._content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(top)
        for widget in (self.bar, self.failure, self.hint, self.run):
            layout.addWidget(widget)
        layout.addWidget(self._area, 1)
        layout.addWidget(self._empty, 1)
        layout.addStretch()  # an error stands alone, at the top
        self._fit(_NARROW)

    def _arrange_middle(self) -> None:
        self.chart.setMinimumHeight(_HISTOGRAM_HEIGHT)
        facts = QVBoxLayout()
        facts.setSpacing(SPACE // 2)
        facts.addWidget(self._facts_title)
        facts.addLayout(self._rows)
        facts.addStretch(1)
        self._rows.setHorizontalSpacing(2 * SPACE)
        self._rows.setVerticalSpacing(1)
        self._rows.setColumnStretch(1, 1)
        self._middle.setSpacing(SPACE)
        self._middle.addWidget(self.chart, 5)
        self._middle.addWidget(card(facts), 4)

    def _fit(self, width: int) -> None:
        """A narrow page puts under one another what otherwise stands side by side."""
        narrow = width < _NARROW
        if narrow is self._narrow:
            return
        self._narrow = narrow
        for place, tile in enumerate(self.tiles.values()):
            self._tiles.addWidget(tile, *divmod(place, 3 if narrow else len(self.tiles)))
        for column in range(len(self.tiles)):
            self._tiles.setColumnStretch(column, 1 if column < 3 or not narrow else 0)
        direction = QBoxLayout.Direction
        self._middle.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)
        self.sources.fit(narrow=narrow)

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, state: DataState) -> None:
        """Show this; cheap where nothing has changed."""
        self._state = state
        self.look.setEnabled(state.running is None and not state.blocked)
        self.look.setToolTip(plain_tip(state.blocked))
        self.cancel.setVisible(state.running is not None)
        self.cancel.setEnabled(not state.cancelling)
        self._show_progress(state)
        self.failure.setVisible(bool(state.failure))
        put(self.failure, state.failure)
        if state.failure:
            self._area.verticalScrollBar().setValue(0)
        known = state.look is not None and not state.failure  # else older figures would pass for those of the new data
        self.hint.setVisible(known and not state.current and state.running is None)
        self._area.setVisible(known)
        self._empty.setVisible(not known and not state.failure)
        self.run.setVisible(state.ready is not None)
        self.run.setText(self._of_run(state.ready))
        if self.isVisible() and known:
            self._show_report(state.look)

    def _show_progress(self, state: DataState) -> None:
        self.bar.setVisible(state.running is not None)
        progress = state.running.progress if state.running else None
        share = progress.done / progress.total if progress and progress.total else None
        self.bar.setMaximum(0 if share is None and state.running else _FINE)  # 0: Qt shows that something goes on
        self.bar.setValue(round((share or 0.0) * _FINE))
        if state.running is None:
            report = state.look.report if state.look and not state.failure else None
            self.status.setText(figures.state(report) if report else "")
        elif state.cancelling:
            self.status.setText(self.tr("ending"))
        elif progress is None:
            self.status.setText(self.tr("starting to look"))
        else:
            self.status.setText(words.amount(progress.done, progress.total, progress.unit))

    def _of_run(self, ready: Ready | None) -> str:
        if ready is None:
            return ""
        text = self.tr(
            "The run on show trains on {documents} documents, {tokens} tokens: {steps} steps per epoch, {total} in all."
        )
        return text.format(
            documents=words.count(ready.train_documents),
            tokens=words.count(ready.train_tokens),
            steps=words.count(ready.steps_per_epoch),
            total=words.count(ready.total_steps),
        )

    def _show_report(self, look: Look[DataReport] | None) -> None:
        report = look.report if look else None
        if look is None or report is None or (report is self._report and look.warnings == self._said):
            return
        self._report, self._said = report, list(look.warnings)
        for name, tile in self.tiles.items():
            tile.title.setText(figures.tile_title(name))
            tile.show_value(*figures.tile(report, name))
            tile.value.setToolTip(figures.tile_tooltip(report, name))
        self._show_notes(look.warnings)
        self.sources.display(report.sources, report.validation_sources)
        self._show_facts(report)
        self._show_lengths(report)
        self.samples.display(report.samples)
        if report is not self._begun:
            self._begun = report
            self._area.verticalScrollBar().setValue(0)

    def _show_notes(self, notes: list[Notice]) -> None:
        self._notes_card.setVisible(bool(notes))
        self.notes.setTextFormat(Qt.TextFormat.PlainText)
        self.notes.setText("\n".join(words.message(note.code, note.params) for note in notes))

    def _show_facts(self, report: DataReport) -> None:
        fill(self._rows, figures.rows(report))

    def _show_lengths(self, report: DataReport) -> None:
        if self.histogram is None:
            from app.views.data.histogram import Histogram

            self.histogram = Histogram(self._tokens)
            self.chart.take_canvas(self.histogram)
        self.histogram.show_bins(report.lengths, report.max_seq_len, cut=report.task == "sft")
        self.chart.show_data(bool(report.lengths))
        self._show_legend(report)

    def _show_legend(self, report: DataReport) -> None:
        longest = self.tr("longest {count}").format(count=words.count(report.longest))
        length = self.tr("sequence length {count}").format(count=words.count(report.max_seq_len))
        entries = [Entry("dots", "curve_a", longest), Entry("dashed", "text", length)]
        self.chart.legend.display(entries, self._tokens)

    # --- looks and words -----------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.samples.retheme(tokens)
        if self.histogram is not None:
            self.histogram.retheme(tokens)
        self.retranslate()

    def retranslate(self) -> None:
        self.look.setText(self.tr("Look at the data"))
        self.cancel.setText(self.tr("Cancel"))
        self.bar.setAccessibleName(self.tr("Progress"))
        self.hint.setText(
            self.tr("Data or settings have changed since this was looked at. Look again to see their effect.")
        )
        self._empty.setText(
            self.tr(
                "Look at the data before you train: what was found in it, how long its documents are, what is cut "
                "or left out, how many steps an epoch has, and the first samples as the model will get them."
            )
        )
        self._facts_title.setText(self.tr("In figures"))
        self.chart.set_words(self.tr("Length of the documents in tokens"), self.tr("No documents"))
        self.sources.retranslate()
        self._report = None
        self.display(self._state)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._fit(event.size().width())
