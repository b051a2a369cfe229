"""Card with the results of a check: verdict, four metrics, and settings that fit the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QProgressBar, QToolButton, QVBoxLayout, QWidget

from app.core import check_inputs
from app.core.preview_cache import PreviewResult
from app.pages.setup import check_texts
from app.texts import tr
from app.theme.icons import icon, pixmap
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    FitContentScrollArea,
    TranslatableWidget,
    card,
    clear_layout,
    label,
    push_button,
    restyle,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from trainer_core.protocol import CheckReport

METRICS: Final = ("memory", "speed", "time", "disk")
_COLOURS: Final = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}
_PROGRESS_STEPS: Final = 1000
_MAX_OFFERS: Final = 4
_NARROW_WIDTH: Final = 620  # pixels
_MIN_HEIGHT: Final = 120  # pixels; a lower window scrolls the card


@dataclass(frozen=True, slots=True)
class CheckState:
    """State of a `CheckCard`."""

    result: PreviewResult[CheckReport] | None = None
    is_current: bool = False  # the result is of the current settings
    running: PreviewResult[CheckReport] | None = None
    cancelling: bool = False
    failure: str = ""  # error of the last check
    applied: int | None = None  # index of the offer that the form contains


class CheckCard(TranslatableWidget):
    """Displays a `CheckState`."""

    cancel_requested = Signal()
    closed = Signal()
    apply_requested = Signal(dict)  # settings of an offer

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._state = CheckState()
        self._displayed: object = None
        self._narrow: bool | None = None
        self._icon, self.verdict, self.facts = QLabel(), label("verdict"), ElidedLabel()
        self.facts.setObjectName("muted")
        self.cancel, self._close = push_button("cancelCheck"), set_object_name(QToolButton(), "flat")
        self.progress = QProgressBar(textVisible=False, maximum=_PROGRESS_STEPS)
        self.titles = {name: label("muted") for name in METRICS}
        self.values = {name: label("section") for name in METRICS}
        self.bar = QProgressBar(textVisible=False, maximum=_PROGRESS_STEPS)
        self.failure, self.notes = label("error", wrap=True), label("warnText", wrap=True)
        self.hint, self._offers_title = label("warnText", wrap=True), label("muted", wrap=True)
        self.offers: list[QWidget] = []  # their Apply buttons
        self._metrics, self._offers = QGridLayout(), QGridLayout()
        self._metrics_box = QWidget()
        self._arrange()
        self.cancel.clicked.connect(self.cancel_requested)
        self._close.clicked.connect(self.closed)
        self.hide()
        self.retheme(palette)
        self.retranslate()

    # --- layout ----------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        header = QHBoxLayout()
        header.setSpacing(SPACING)
        header.addWidget(self._icon)
        header.addWidget(self.verdict)
        header.addWidget(self.facts, 1)
        header.addWidget(self.cancel)
        header.addWidget(self._close)
        self._metrics_box.setLayout(self._metrics)
        self._metrics.setContentsMargins(0, 0, 0, 0)
        self._metrics.setHorizontalSpacing(3 * SPACING)
        self._metrics.setVerticalSpacing(2)
        self._offers.setHorizontalSpacing(2 * SPACING)
        self._offers.setVerticalSpacing(SPACING // 2)
        self._offers.setColumnStretch(0, 1)
        inner = vertical_layout(spacing=SPACING - 2)
        inner.addLayout(header)
        for widget in (self.progress, self.failure, self._metrics_box, self.notes, self.hint, self._offers_title):
            inner.addWidget(widget)
        inner.addLayout(self._offers)
        content = set_object_name(QWidget(), "scrolled")
        self._area = FitContentScrollArea(content, _MIN_HEIGHT)
        for parent, widget in ((content, card(inner)), (self, self._area)):
            layout = QVBoxLayout(parent)
            layout.setContentsMargins(0, 0, 0, 0)
            layout.addWidget(widget)
        self._arrange_metrics(_NARROW_WIDTH)

    def _arrange_metrics(self, width: int) -> None:
        """Four metrics in a row, or two in a narrow window."""
        narrow = width < _NARROW_WIDTH
        if narrow is self._narrow:
            return
        self._narrow = narrow
        columns = 2 if narrow else len(METRICS)
        for place, name in enumerate(METRICS):
            row, column = divmod(place, columns)
            self._metrics.addWidget(self.titles[name], 3 * row, column)
            self._metrics.addWidget(self.values[name], 3 * row + 1, column)
        self._metrics.addWidget(self.bar, 2, 0)
        for column in range(len(METRICS)):
            self._metrics.setColumnStretch(column, 1 if column < columns else 0)

    # --- display ---------------------------------------------------------------------------------------

    def display(self, state: CheckState) -> None:
        """Show `state`; cheap if it has not changed."""
        self._state = state
        report = state.result.report if state.result and not state.running and not state.failure else None
        self._show_progress(state)
        displayed = (id(report), state.is_current, state.applied, state.failure, state.running is None)
        if displayed == self._displayed:
            return
        self._displayed = displayed
        set_text_if_changed(self.failure, state.failure)
        self.failure.setVisible(bool(state.failure))
        self._close.setVisible(state.running is None)
        for part in (self._metrics_box, self._icon):
            part.setVisible(report is not None)
        self.hint.setVisible(report is not None and not state.is_current)
        warnings = state.result.warnings if state.result and report else []
        self.notes.setVisible(bool(warnings))
        self.notes.setText("\n".join(formatting.localized_message(note.code, note.params) for note in warnings))
        self._show_offers(report, state.applied)
        if report is not None:
            self._show_report(report)
        elif state.failure:
            self._set_heading(tr("setup.check_did_not_succeed"), "bad", "")
        self._update_height()

    def _update_height(self) -> None:
        """Apply the new height now: a later layout event would first paint a clipped card."""
        self._area.updateGeometry()
        self.updateGeometry()
        parent = self.parentWidget()
        if parent is not None and (layout := parent.layout()) is not None:
            layout.activate()

    def _show_progress(self, state: CheckState) -> None:
        running = state.running
        self.progress.setVisible(running is not None)
        self.cancel.setVisible(running is not None)
        self.cancel.setEnabled(not state.cancelling)
        if running is None:
            return
        progress = running.progress if running.progress and running.progress.phase == running.phase else None
        is_determinate = progress is not None and bool(progress.total)
        self.progress.setMaximum(_PROGRESS_STEPS if is_determinate else 0)
        phase = formatting.format_phase(running.phase) if running.phase not in (None, "", "checking") else ""
        amount = ""
        if progress is not None and progress.total:
            self.progress.setValue(round(progress.done / progress.total * _PROGRESS_STEPS))
            amount = formatting.format_progress(progress.done, progress.total, progress.unit)
        parts = (tr("setup.ending") if state.cancelling else phase, amount)
        self._set_heading(tr("setup.check"), "text", "  ·  ".join(filter(None, parts)))

    def _set_heading(self, verdict: str, colour: str, facts: str) -> None:
        set_text_if_changed(self.verdict, verdict)
        self.facts.setText(facts)
        if self.verdict.property("level") != colour:
            self.verdict.setProperty("level", colour)
            restyle(self.verdict)

    def _show_report(self, report: CheckReport) -> None:
        level = _COLOURS[report.verdict]
        self._set_heading(formatting.format_verdict(report.verdict), level, check_texts.format_measurement(report))
        self._icon.setPixmap(pixmap(report.verdict, getattr(self._palette, level), self.devicePixelRatioF()))
        for name in METRICS:
            self.titles[name].setText(check_texts.format_metric_title(name, report))
            self.values[name].setText(check_texts.format_metric(name, report))
            for widget in (self.titles[name], self.values[name]):
                widget.setToolTip(check_texts.format_metric_tooltip(name, report))
        self.values["disk"].setProperty("level", "bad" if report.disk_needed > report.disk_free else "")
        used = check_texts.memory_fraction(report)
        self.bar.setVisible(used is not None)
        self.bar.setValue(round(_PROGRESS_STEPS * (used or 0.0)))
        self.bar.setAccessibleName(self.titles["memory"].text())
        self.bar.setProperty("level", level)
        restyle(self.values["disk"])
        restyle(self.bar)

    def _show_offers(self, report: CheckReport | None, applied: int | None) -> None:
        clear_layout(self._offers)
        self.offers = []
        offers = report.alternatives[:_MAX_OFFERS] if report and report.verdict != "fits" else []
        self._offers_title.setVisible(bool(offers))
        for row, trial in enumerate(offers):
            assert report is not None
            settings = label(wrap=True)
            settings.setText(formatting.format_settings(check_inputs.changed_settings(trial, report.chosen)))
            self._offers.addWidget(settings, row, 0)
            for column, text in enumerate(check_texts.format_trial(trial), 1):
                value = label("muted")
                value.setText(text)
                self._offers.addWidget(value, row, column, Qt.AlignmentFlag.AlignRight)
            button = push_button("apply")
            button.setText(tr("setup.applied") if row == applied else tr("setup.apply"))
            button.setEnabled(row != applied)
            button.clicked.connect(partial(self._apply, check_inputs.trial_settings(trial)))
            self.offers.append(button)
            self._offers.addWidget(button, row, 3)

    def _apply(self, settings: Mapping[str, Any], _checked: bool = False) -> None:
        self.apply_requested.emit(dict(settings))

    # --- theme and language -----------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self._close.setIcon(icon("close", palette.text, palette.muted))
        self._redisplay()

    def retranslate(self) -> None:
        self.cancel.setText(tr("common.cancel"))
        self._close.setToolTip(tr("setup.dismiss"))
        self._close.setAccessibleName(tr("setup.dismiss"))
        self.progress.setAccessibleName(tr("common.progress"))
        self.hint.setText(tr("setup.settings_have_changed_since_this"))
        self._offers_title.setText(tr("setup.these_fit_with_same_effective"))
        self._redisplay()

    def _redisplay(self) -> None:
        self._displayed = None
        self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._arrange_metrics(event.size().width())
