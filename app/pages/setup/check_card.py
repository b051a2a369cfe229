"""Card with the results of a check: verdict, four metrics, and settings that fit the memory."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QProgressBar, QWidget

from app.core.preview_keys import PreviewResult, offered_settings
from app.services.preview_job import CheckJob
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    clear_layout,
    horizontal_layout,
    label,
    push_button,
    restyle,
    set_object_name,
    set_text_if_changed,
    show_fraction,
    vertical_layout,
)
from app.widgets.fitting_card import FittingCard
from trainer_core.protocol import CheckReport, MeasuredSettings

METRICS: Final = ("memory", "speed", "time", "disk")
_LEVELS: Final = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}
_MAX_OFFERS: Final = 4
_MIN_HEIGHT: Final = 120  # pixels; a lower window scrolls the card


class CheckCard(FittingCard):
    """Shows a check until it is closed."""

    def __init__(self, job: CheckJob) -> None:
        super().__init__()
        self._job = job
        self.verdict, self.facts = label("verdict"), set_object_name(ElidedLabel(), "muted")
        self.cancel, self._close = push_button("cancelCheck"), IconButton("close", "flat")
        self.progress = QProgressBar(textVisible=False)
        self.titles = {name: label("muted") for name in METRICS}
        self.values = {name: label("section") for name in METRICS}
        self.bar = QProgressBar(textVisible=False)
        self.failure, self.notes = label("error", wrap=True), label("warnText", wrap=True)
        self.hint, self._offers_title = label("warnText", wrap=True), label("muted", wrap=True)
        self.offers: list[QWidget] = []  # their Apply buttons
        self._metrics_box, self._offers = QWidget(), QGridLayout()
        self._arrange()
        self.cancel.clicked.connect(job.cancel)
        self._close.clicked.connect(job.discard)
        job.changed.connect(self.refresh)
        job.form.changed.connect(self.refresh)
        self.retranslate()

    def _arrange(self) -> None:
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
        inner.addLayout(horizontal_layout(self.verdict, (self.facts, 1), self.cancel, self._close))
        for widget in (self.progress, self.failure, self._metrics_box, self.notes, self.hint, self._offers_title):
            inner.addWidget(widget)
        inner.addLayout(self._offers)
        self.set_content(inner, _MIN_HEIGHT)

    def refresh(self) -> None:
        """Show the state of the check."""
        job, running, failure = self._job, self._job.running, self._job.failure
        result = None if running or failure else job.result
        report = result.report if result else None
        is_running = running is not None and not job.is_cancelled
        for widget, is_shown in (
            (self.progress, is_running),
            (self.cancel, is_running),
            (self._close, not is_running),
            (self.failure, bool(failure)),
            (self._metrics_box, report is not None),
            (self.hint, report is not None and not job.is_current),
            (self.notes, bool(result and result.warnings)),
        ):
            widget.setVisible(is_shown)
        set_text_if_changed(self.failure, failure)
        warnings = result.warnings if result else []
        self.notes.setText("\n".join(formatting.localized_message(note.code, note.params) for note in warnings))
        if running is not None:
            self._show_progress(running)
        elif failure:
            self._set_heading(tr("setup.check_failed"), "bad", "")
        elif report is not None:
            self._show_report(report)
        self._show_offers(report)
        self.setVisible(is_running or bool(failure) or report is not None)
        self.update_height()

    def _show_progress(self, running: PreviewResult[CheckReport]) -> None:
        progress = running.progress if running.progress and running.progress.phase == running.phase else None
        phase = formatting.format_phase(running.phase) if running.phase not in (None, "", "checking") else ""
        fraction, amount = None, ""
        if progress is not None and progress.total:
            fraction = progress.done / progress.total
            amount = formatting.format_progress(progress.done, progress.total, progress.unit)
        show_fraction(self.progress, fraction)
        self._set_heading(tr("setup.check"), "text", "  ·  ".join(filter(None, (phase, amount))))

    def _set_heading(self, verdict: str, level: str, facts: str) -> None:
        set_text_if_changed(self.verdict, verdict)
        self.facts.setText(facts)
        if self.verdict.property("level") != level:
            self.verdict.setProperty("level", level)
            restyle(self.verdict)

    def _show_report(self, report: CheckReport) -> None:
        level, chosen = _LEVELS[report.verdict], report.chosen
        batches = tr("setup.batch", size=chosen.batch_size, times=chosen.gradient_accumulation_steps)
        seconds = f"{report.duration_s:.0f}"
        when = tr("setup.from_cache") if report.from_cache else tr("setup.measured_in", seconds=seconds)
        facts = "  ·  ".join((formatting.format_device(report.device), batches, when))
        self._set_heading(formatting.format_verdict(report.verdict), level, facts)
        for name, (title, value, tooltip) in _format_metrics(report).items():
            self.titles[name].setText(title)
            self.values[name].setText(value)
            for widget in (self.titles[name], self.values[name]):
                widget.setToolTip(tooltip)
        self.values["disk"].setProperty("level", "bad" if report.disk_needed > report.disk_free else "")
        available = _available_memory(report)
        self.bar.setVisible(bool(available))
        show_fraction(self.bar, min(1.0, chosen.peak / available) if available and chosen.peak is not None else 1.0)
        self.bar.setAccessibleName(self.titles["memory"].text())
        self.bar.setProperty("level", level)
        restyle(self.values["disk"])
        restyle(self.bar)

    def _show_offers(self, report: CheckReport | None) -> None:
        clear_layout(self._offers)
        self.offers, form = [], self._job.form
        offers = report.alternatives[:_MAX_OFFERS] if report and report.verdict != "fits" else []
        self._offers_title.setVisible(bool(offers))
        for row, offer in enumerate(offers):
            assert report is not None
            values, button = offered_settings(offer), push_button("apply")
            is_applied = form.has_values(values)
            settings, memory, speed = label(wrap=True), label("muted"), label("muted")
            settings.setText(_format_changes(offer, report.chosen))
            memory.setText(formatting.format_bytes(offer.peak))
            speed.setText(tr("setup.speed", rate=formatting.format_rate(offer.tokens_per_s)))
            button.setText(tr("setup.applied") if is_applied else tr("setup.apply"))
            button.setEnabled(not is_applied)
            button.clicked.connect(lambda *_, values=values: form.set_values(values))
            self.offers.append(button)
            for column, widget in enumerate((settings, memory, speed, button)):
                right = Qt.AlignmentFlag.AlignRight if widget in (memory, speed) else Qt.AlignmentFlag(0)
                self._offers.addWidget(widget, row, column, right)

    def retranslate(self) -> None:
        self.cancel.setText(tr("common.cancel"))
        self._close.setToolTip(tr("setup.dismiss"))
        self._close.setAccessibleName(tr("setup.dismiss"))
        self.progress.setAccessibleName(tr("common.progress"))
        self.hint.setText(tr("setup.check_outdated"))
        self._offers_title.setText(tr("setup.alternatives"))
        self.refresh()


def _format_metrics(report: CheckReport) -> dict[str, tuple[str, str, str]]:
    """Title, value and tooltip of each metric."""
    count, size, chosen = formatting.format_count, formatting.format_bytes, report.chosen
    available = _available_memory(report)
    if chosen.peak is None:
        memory = tr("setup.exceeds_free", free=size(available))
    else:
        memory = size(chosen.peak) if available is None else _format_needed(chosen.peak, available)
    total, free, ram = size(report.memory_total), size(report.memory_free), size(chosen.ram_peak)
    checkpoints = count(report.checkpoints)
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
            tr("setup.time_note", steps=count(report.total_steps)),
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


def _available_memory(report: CheckReport) -> int | None:
    """Bytes that are not used by other processes; None: not known for this device."""
    return report.memory_total if report.memory_free is None else report.memory_free
