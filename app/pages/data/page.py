"""Data page: statistics and samples of the selected data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QProgressBar, QVBoxLayout, QWidget

from app.core.preview_keys import PreviewResult
from app.pages.data.sample_view import SamplesCard
from app.pages.data.sources_table import SourcesTable
from app.pages.page import Page
from app.pages.plots.chart import Chart
from app.pages.plots.legend import LegendEntry
from app.pages.plots.tiles import Tile, TileContent
from app.texts import current_language, tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    card,
    fill_grid,
    horizontal_layout,
    label,
    plain_tooltip,
    push_button,
    scroll_area,
    set_object_name,
    set_text_if_changed,
)
from trainer_core import data_report_texts
from trainer_core.protocol import CodedEvent, DataReport, Ready

if TYPE_CHECKING:
    from app.pages.data.histogram import Histogram

_TILES = ("documents", "tokens", "samples", "epoch", "steps")
_PROGRESS_STEPS = 1000
_HISTOGRAM_HEIGHT = 230  # pixels
_NARROW = 760  # pixels


@dataclass(frozen=True, slots=True)
class DataState:
    """State of the page."""

    preview: PreviewResult[DataReport] | None = None  # report on display
    current: bool = False  # the report is about the configuration of the form
    running: PreviewResult[DataReport] | None = None
    cancelling: bool = False
    failure: str = ""  # error of the last preview
    blocked: str = ""  # why no preview can be started
    ready: Ready | None = None  # data of the displayed run


class DataPage(Page):
    """Shows a `DataState`."""

    preview_requested = Signal()
    cancel_requested = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._state = DataState()
        self._report: DataReport | None = None  # on display
        self._displayed_warnings: list[CodedEvent] | None = None
        self._scrolled_report: DataReport | None = None  # the last one that was scrolled to the top
        self.preview_button, self.cancel_button = push_button("previewData"), push_button("cancelPreview")
        self.status, self.run = set_object_name(ElidedLabel(), "muted"), set_object_name(ElidedLabel(), "muted")
        self.hint, self.failure = label("warnText", wrap=True), label("error", wrap=True)
        self.bar = QProgressBar(textVisible=False, maximum=_PROGRESS_STEPS)
        self._placeholder = label("muted", wrap=True, centred=True)
        self._placeholder.setContentsMargins(10 * SPACING, 0, 10 * SPACING, 10 * SPACING)
        self.tiles = {name: Tile(name) for name in _TILES}
        self.warnings = label("warnText", wrap=True)
        self.warnings.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.sources = SourcesTable()
        self.chart = Chart("lengths")
        self.histogram: Histogram | None = None
        self.samples = SamplesCard(palette)
        self._rows, self._tiles = QGridLayout(), QGridLayout()
        self._middle = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._narrow: bool | None = None
        self._facts_title = label("section")
        self._build_layout()
        self.preview_button.clicked.connect(self.preview_requested)
        self.cancel_button.clicked.connect(self.cancel_requested)
        self.retranslate()

    def _build_layout(self) -> None:
        self._content = set_object_name(QWidget(), "scrolled")
        content = QVBoxLayout(self._content)
        content.setContentsMargins(0, 0, SPACING // 2, 0)
        content.setSpacing(SPACING)
        self._tiles.setSpacing(SPACING)
        inner = QVBoxLayout()
        inner.addWidget(self.warnings)
        self._warnings_card = card(inner)
        content.addLayout(self._tiles)
        content.addWidget(self._warnings_card)
        content.addWidget(self.sources)
        self._build_middle()
        content.addLayout(self._middle)
        content.addWidget(self.samples)
        content.addStretch(1)
        self._area = scroll_area(self._content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(horizontal_layout(self.preview_button, self.cancel_button, (self.status, 1)))
        for widget in (self.bar, self.failure, self.hint, self.run):
            layout.addWidget(widget)
        layout.addWidget(self._area, 1)
        layout.addWidget(self._placeholder, 1)
        layout.addStretch()  # an error is at the top
        self._set_width(_NARROW)

    def _build_middle(self) -> None:
        self.chart.setMinimumHeight(_HISTOGRAM_HEIGHT)
        facts = QVBoxLayout()
        facts.setSpacing(SPACING // 2)
        facts.addWidget(self._facts_title)
        facts.addLayout(self._rows)
        facts.addStretch(1)
        self._rows.setHorizontalSpacing(2 * SPACING)
        self._rows.setVerticalSpacing(1)
        self._rows.setColumnStretch(1, 1)
        self._middle.setSpacing(SPACING)
        self._middle.addWidget(self.chart, 5)
        self._middle.addWidget(card(facts), 4)

    def _set_width(self, width: int) -> None:
        """Stack the cards of a narrow page."""
        narrow = width < _NARROW
        if narrow is self._narrow:
            return
        self._narrow = narrow
        for index, tile in enumerate(self.tiles.values()):
            self._tiles.addWidget(tile, *divmod(index, 3 if narrow else len(self.tiles)))
        for column in range(len(self.tiles)):
            self._tiles.setColumnStretch(column, 1 if column < 3 or not narrow else 0)
        direction = QBoxLayout.Direction
        self._middle.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)
        self.sources.set_narrow(narrow)

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, state: DataState) -> None:
        self._state = state
        self.preview_button.setEnabled(state.running is None and not state.blocked)
        self.preview_button.setToolTip(plain_tooltip(state.blocked))
        self.cancel_button.setVisible(state.running is not None)
        self.cancel_button.setEnabled(not state.cancelling)
        self._show_progress(state)
        self.failure.setVisible(bool(state.failure))
        set_text_if_changed(self.failure, state.failure)
        if state.failure:
            self._area.verticalScrollBar().setValue(0)
        known = state.preview is not None and not state.failure  # figures of other data would be misleading
        self.hint.setVisible(known and not state.current and state.running is None)
        self._area.setVisible(known)
        self._placeholder.setVisible(not known and not state.failure)
        self.run.setVisible(state.ready is not None)
        self.run.setText(_format_run_data(state.ready))
        if self.isVisible() and known:
            self._show_report(state.preview)

    def _show_progress(self, state: DataState) -> None:
        self.bar.setVisible(state.running is not None)
        progress = state.running.progress if state.running else None
        share = progress.done / progress.total if progress and progress.total else None
        self.bar.setMaximum(0 if share is None and state.running else _PROGRESS_STEPS)  # 0: busy indicator
        self.bar.setValue(round((share or 0.0) * _PROGRESS_STEPS))
        if state.running is None:
            report = state.preview.report if state.preview and not state.failure else None
            self.status.setText(data_report_texts.format_read_state(report, current_language()) if report else "")
        elif state.cancelling:
            self.status.setText(tr("data.cancelling"))
        elif progress is None:
            self.status.setText(tr("data.starting_preview"))
        else:
            self.status.setText(formatting.format_progress(progress.done, progress.total, progress.unit))

    def _show_report(self, preview: PreviewResult[DataReport] | None) -> None:
        report = preview.report if preview else None
        if (
            preview is None
            or report is None
            or (report is self._report and preview.warnings == self._displayed_warnings)
        ):
            return
        self._report, self._displayed_warnings = report, list(preview.warnings)
        for name, figure in data_report_texts.key_figures(report, current_language()).items():
            self.tiles[name].display(_tile_content(figure))
        self._show_warnings(preview.warnings)
        self.sources.display(report.sources, report.validation_sources)
        fill_grid(self._rows, data_report_texts.table_rows(report, current_language()))
        self._show_lengths(report)
        self.samples.display(report.samples)
        if report is not self._scrolled_report:
            self._scrolled_report = report
            self._area.verticalScrollBar().setValue(0)

    def _show_warnings(self, warnings: list[CodedEvent]) -> None:
        self._warnings_card.setVisible(bool(warnings))
        self.warnings.setText("\n".join(formatting.localized_message(event.code, event.params) for event in warnings))

    def _show_lengths(self, report: DataReport) -> None:
        if self.histogram is None:
            from app.pages.data.histogram import Histogram

            self.histogram = Histogram(self._palette)
            self.chart.set_canvas(self.histogram)
        self.histogram.show_bins(report.lengths, report.max_seq_len, cut=report.task == "sft")
        self.chart.show_canvas(bool(report.lengths))
        longest = tr("data.longest_count", count=formatting.format_count(report.longest))
        length = tr("data.sequence_length_count", count=formatting.format_count(report.max_seq_len))
        entries = [LegendEntry("dots", "curve_a", longest), LegendEntry("dashed", "text", length)]
        self.chart.legend.display(entries, self._palette)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.samples.retheme(palette)
        if self.histogram is not None:
            self.histogram.retheme(palette)
        self.retranslate()

    def retranslate(self) -> None:
        self.preview_button.setText(tr("data.preview_data"))
        self.cancel_button.setText(tr("common.cancel"))
        self.bar.setAccessibleName(tr("common.progress"))
        self.hint.setText(tr("data.preview_outdated"))
        self._placeholder.setText(tr("data.empty_page"))
        self._facts_title.setText(tr("data.statistics"))
        self.chart.set_texts(tr("data.document_length"), tr("data.no_documents"))
        self.sources.retranslate()
        self._report = None
        self.display(self._state)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._set_width(event.size().width())


def _tile_content(figure: data_report_texts.KeyFigure) -> TileContent:
    """Return the content of a tile. The tooltip has the full number."""
    value = formatting.format_large_number(figure.value)
    tooltip = "\n".join(filter(None, (f"{figure.value:,}", figure.note)))
    return TileContent(figure.title, f"≈ {value}" if figure.estimated else value, figure.caption, tooltip)


def _format_run_data(ready: Ready | None) -> str:
    if ready is None:
        return ""
    return tr(
        "data.displayed_run",
        documents=formatting.format_count(ready.train_documents),
        tokens=formatting.format_count(ready.train_tokens),
        steps=formatting.format_count(ready.steps_per_epoch),
        total=formatting.format_count(ready.total_steps),
    )
