"""Card with the results of a check: verdict, four metrics, and settings that fit the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QProgressBar, QToolButton, QVBoxLayout, QWidget

from app.core.preview_keys import PreviewResult, offered_settings
from app.pages.performance import execution_texts
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
from trainer_core.protocol import CheckReport, MeasuredSettings

METRICS: Final = ("memory", "speed", "time", "disk")
_COLOURS: Final = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}
_PROGRESS_STEPS: Final = 1000
_MAX_OFFERS: Final = 4
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
        self._metrics_box, self._offers = QWidget(), QGridLayout()
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
        metrics = QGridLayout(self._metrics_box)
        metrics.setContentsMargins(0, 0, 0, 0)
        metrics.setHorizontalSpacing(3 * SPACING)
        metrics.setVerticalSpacing(2)
        metrics.setColumnStretch(1, 1)
        for row, name in enumerate(METRICS):
            metrics.addWidget(self.titles[name], row, 0)
            metrics.addWidget(self.values[name], row, 1)
        metrics.addWidget(self.bar, len(METRICS), 0, 1, 2)
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

    # --- display ---------------------------------------------------------------------------------------

    def display(self, state: CheckState) -> None:
        """Show `state`; cheap if it has not changed."""
        if state == self._state and state.running is None:
            return
        self._state = state
        report = state.result.report if state.result and not state.running and not state.failure else None
        self._show_progress(state)
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
            self._set_heading(tr("setup.check_failed"), "bad", "")
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
        parts = (tr("setup.cancelling") if state.cancelling else phase, amount)
        self._set_heading(tr("setup.check"), "text", "  ·  ".join(filter(None, parts)))

    def _set_heading(self, verdict: str, colour: str, facts: str) -> None:
        set_text_if_changed(self.verdict, verdict)
        self.facts.setText(facts)
        if self.verdict.property("level") != colour:
            self.verdict.setProperty("level", colour)
            restyle(self.verdict)

    def _show_report(self, report: CheckReport) -> None:
        level = _COLOURS[report.verdict]
        self._set_heading(formatting.format_verdict(report.verdict), level, _format_measurement(report))
        self._icon.setPixmap(pixmap(report.verdict, getattr(self._palette, level), self.devicePixelRatioF()))
        for name, (title, value, tooltip) in _format_metrics(report).items():
            self.titles[name].setText(title)
            self.values[name].setText(value)
            for widget in (self.titles[name], self.values[name]):
                widget.setToolTip(tooltip)
        self.values["disk"].setProperty("level", "bad" if report.disk_needed > report.disk_free else "")
        used = _memory_fraction(report)
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
        for row, offer in enumerate(offers):
            assert report is not None
            speed = tr("setup.speed", rate=formatting.format_rate(offer.tokens_per_s))
            settings = label(wrap=True)
            settings.setText(_format_changes(offer, report.chosen))
            self._offers.addWidget(settings, row, 0)
            for column, text in enumerate((formatting.format_bytes(offer.peak), speed), 1):
                value = label("muted")
                value.setText(text)
                self._offers.addWidget(value, row, column, Qt.AlignmentFlag.AlignRight)
            values, button = offered_settings(offer), push_button("apply")
            button.setText(tr("setup.applied") if row == applied else tr("setup.apply"))
            button.setEnabled(row != applied)
            button.clicked.connect(lambda *_, values=values: self.apply_requested.emit(values))
            self.offers.append(button)
            self._offers.addWidget(button, row, 3)

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
        self.hint.setText(tr("setup.check_outdated"))
        self._offers_title.setText(tr("setup.alternatives"))
        self._redisplay()

    def _redisplay(self) -> None:
        state, self._state = self._state, CheckState()
        self.display(state)


def _format_measurement(report: CheckReport) -> str:
    """Device, batch size, and when it was measured."""
    chosen = report.chosen
    batches = tr("setup.batch", size=chosen.batch_size, times=chosen.gradient_accumulation_steps)
    seconds = f"{report.duration_s:.0f}"
    when = tr("setup.from_cache") if report.from_cache else tr("setup.measured_in", seconds=seconds)
    return "  ·  ".join((execution_texts.format_device(report.device), batches, when))


def _format_metrics(report: CheckReport) -> dict[str, tuple[str, str, str]]:
    """Title, value and tooltip of each metric."""
    count, size, chosen = formatting.format_count, formatting.format_bytes, report.chosen
    available = _available_memory(report)
    if chosen.peak is None:
        memory = tr("setup.exceeds_free", free=size(available))
    else:
        memory = size(chosen.peak) if available is None else _format_needed(chosen.peak, available)
    total, free, ram = size(report.memory_total), size(report.memory_free), size(chosen.ram_peak)
    steps, checkpoints = count(report.total_steps), count(report.checkpoints)
    return {
        "memory": (
            tr("setup.peak_ram") if report.memory_total == report.ram_total else tr("setup.peak_vram"),
            memory,
            tr("setup.memory_free", free=free, total=total, ram=ram),
        ),
        "speed": (
            tr("setup.tokens_per_second"),
            formatting.format_rate(chosen.tokens_per_s),
            tr("setup.tokens_per_step", count=count(report.tokens_per_step)),
        ),
        "time": (
            tr("setup.time_to_finish"),
            formatting.format_duration(report.seconds),
            tr("setup.time_note", steps=steps),
        ),
        "disk": (
            tr("setup.disk_needed"),
            _format_needed(report.disk_needed, report.disk_free),
            tr("setup.checkpoints_kept", count=checkpoints, size=size(report.checkpoint_bytes)),
        ),
    }


def _format_needed(needed: int, free: int) -> str:
    return tr("setup.disk_of_free", needed=formatting.format_bytes(needed), free=formatting.format_bytes(free))


def _format_changes(offer: MeasuredSettings, chosen: MeasuredSettings) -> str:
    """Settings of an offer that differ from the chosen ones."""
    current = offered_settings(chosen)
    return formatting.format_settings(
        {name: value for name, value in offered_settings(offer).items() if value != current[name]}
    )


def _memory_fraction(report: CheckReport) -> float | None:
    """Peak memory as a fraction of the available memory, 0..1; None: not known for this device."""
    available, peak = _available_memory(report), report.chosen.peak
    return None if not available else 1.0 if peak is None else min(1.0, peak / available)


def _available_memory(report: CheckReport) -> int | None:
    """Bytes that are not used by other processes."""
    return report.memory_total if report.memory_free is None else report.memory_free
