"""Data page: statistics and samples of the selected data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QProgressBar, QVBoxLayout, QWidget

from app.core.preview_keys import PreviewResult
from app.pages.data.sample_view import SamplesCard
from app.pages.data.sources_table import SourcesTable
from app.pages.page import Page, ShownRun
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
    show_fraction,
    vertical_layout,
)
from trainer_core import data_report_texts
from trainer_core.protocol import DataReport

if TYPE_CHECKING:
    from app.pages.data.histogram import Histogram
    from app.services.preview_job import DataPreviewJob

_TILES: Final = ("documents", "tokens", "samples", "epoch", "steps")
_HISTOGRAM_HEIGHT: Final = 230  # pixels
_NARROW: Final = 760  # pixels


class DataPage(Page):
    """Starts a `DataPreviewJob` and shows its report."""

    _job: DataPreviewJob

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._displayed: PreviewResult[DataReport] | None = None
        self.preview_button, self.cancel_button = push_button("previewData"), push_button("cancelPreview")
        self.status, self.run = set_object_name(ElidedLabel(), "muted"), set_object_name(ElidedLabel(), "muted")
        self.hint, self.failure = label("warnText", wrap=True), label("error", wrap=True)
        self.run.hide()
        self.bar = QProgressBar(textVisible=False)
        self._placeholder = label("muted", wrap=True, centred=True)
        self._placeholder.setContentsMargins(10 * SPACING, 0, 10 * SPACING, 10 * SPACING)
        self.tiles = {name: Tile(name) for name in _TILES}
        self.warnings = label("warnText", wrap=True)
        self.warnings.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.sources = SourcesTable()
        self.chart = Chart("lengths")
        self.histogram: Histogram | None = None
        self.samples = SamplesCard(palette)
        self._facts, self._tiles = QGridLayout(), QGridLayout()
        self._middle = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._narrow: bool | None = None
        self._facts_title = label("section")
        self._build_layout()

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
        facts = vertical_layout(spacing=SPACING // 2)
        facts.addWidget(self._facts_title)
        facts.addLayout(self._facts)
        facts.addStretch(1)
        self._facts.setHorizontalSpacing(2 * SPACING)
        self._facts.setVerticalSpacing(1)
        self._facts.setColumnStretch(1, 1)
        self._middle.setSpacing(SPACING)
        self._middle.addWidget(self.chart, 1)
        self._middle.addWidget(card(facts), 1)

    def connect_job(self, job: DataPreviewJob) -> None:
        self._job = job
        self.preview_button.clicked.connect(job.start)
        self.cancel_button.clicked.connect(job.cancel)
        job.changed.connect(self.refresh)
        job.form.changed.connect(self.refresh)
        self.retranslate()

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
        self.samples.set_narrow(narrow)

    # --- showing ---------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show the state of the preview."""
        if not self.isVisible():
            return
        job, failure = self._job, self._job.failure
        result, is_running = job.result, job.running is not None
        self.preview_button.setEnabled(not is_running and not job.blocked_reason)
        self.preview_button.setToolTip(plain_tooltip(job.blocked_reason))
        self.cancel_button.setVisible(is_running)
        self.cancel_button.setEnabled(not job.is_cancelled)
        self.bar.setVisible(is_running)
        self._show_status(job.running, result)
        self.failure.setVisible(bool(failure))
        set_text_if_changed(self.failure, failure)
        self.hint.setVisible(result is not None and not job.is_current and not is_running)
        self._area.setVisible(result is not None)
        self._placeholder.setVisible(result is None and not failure)
        if result is not None and result is not self._displayed:
            self._displayed = result
            self._show_report(result)
            self._area.verticalScrollBar().setValue(0)

    def _show_status(self, running: PreviewResult[DataReport] | None, result: PreviewResult[DataReport] | None) -> None:
        progress = running.progress if running else None
        if running is None:
            report = result.report if result else None
            text = data_report_texts.format_read_state(report, current_language()) if report else ""
        elif progress is None:
            text = tr("data.starting_preview")
        else:
            text = formatting.format_progress(progress.done, progress.total, progress.unit)
        self.status.setText(text)
        show_fraction(self.bar, progress.done / progress.total if progress and progress.total else None)

    def _show_report(self, result: PreviewResult[DataReport]) -> None:
        report, language = result.report, current_language()
        assert report is not None
        for name, figure in data_report_texts.key_figures(report, language).items():
            self.tiles[name].display(_tile_content(figure))
        warnings = [formatting.localized_message(event.code, event.params) for event in result.warnings]
        self._warnings_card.setVisible(bool(warnings))
        self.warnings.setText("\n".join(warnings))
        self.sources.display(report.sources, report.validation_sources)
        fill_grid(self._facts, data_report_texts.table_rows(report, language))
        self._show_lengths(report)
        self.samples.display(report.samples)

    def _show_lengths(self, report: DataReport) -> None:
        if self.histogram is None:
            from app.pages.data.histogram import Histogram  # imports pyqtgraph

            self.histogram = Histogram(self._palette)
            self.chart.set_canvas(self.histogram)
        if report.lengths:
            self.histogram.show_bins(report.lengths, report.max_seq_len, cut=report.task != "pretrain")
        self.chart.show_canvas(bool(report.lengths))
        longest = tr("data.longest_count", count=formatting.format_count(report.longest))
        length = tr("data.sequence_length_count", count=formatting.format_count(report.max_seq_len))
        entries = [LegendEntry("dots", "curve_a", longest), LegendEntry("dashed", "text", length)]
        self.chart.legend.display(entries, self._palette)

    def show_run(self, run: ShownRun) -> None:
        ready, count = run.record.ready, formatting.format_count
        self.run.setVisible(ready is not None)
        if ready is not None:
            documents, tokens = count(ready.train_documents), count(ready.train_tokens)
            steps, total = count(ready.steps_per_epoch), count(ready.total_steps)
            self.run.setText(tr("data.displayed_run", documents=documents, tokens=tokens, steps=steps, total=total))

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
        if self._displayed is not None:
            self._show_report(self._displayed)
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._set_width(event.size().width())


def _tile_content(figure: data_report_texts.KeyFigure) -> TileContent:
    """Return the content of a tile. The tooltip has the full number."""
    value = formatting.format_large_number(figure.value)
    tooltip = "\n".join(filter(None, (f"{figure.value:,}", figure.note)))
    return TileContent(figure.title, f"≈ {value}" if figure.estimated else value, figure.caption, tooltip)
