"""Card above the pages: progress of the setup that completes the environment of this window."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QStandardItemModel, QTextCursor
from PySide6.QtWidgets import QProgressBar, QTextBrowser, QWidget

from app.core.installation import installation
from app.help.text_dialog import TextDialog
from app.services.setup_job import Mirror, SetupJob, SetupPlan
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    NoScrollComboBox,
    announce,
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

_TITLES: Final = {  # by state of the job
    "offered": "installation.title.offered",
    "running": "installation.title.running",
    "paused": "installation.title.paused",
    "failed": "installation.title.failed",
    "finished": "installation.title.finished",
}
_LEVELS: Final = {"failed": "bad", "finished": "good"}
_SWITCH_TEXTS: Final = {
    "offered": "installation.switch.offered",
    "running": "installation.switch.running",
    "paused": "installation.switch.paused",
    "failed": "installation.switch.failed",
}
_MIN_HEIGHT: Final = 300  # pixels, of all rows: a lower window scrolls the card with its pages
_LOG_SIZE: Final = QSize(760, 480)


class InstallationCard(FittingCard):
    """What setup does, how long it takes and what is possible meanwhile; after a failure, why it failed."""

    take_back_clicked = Signal()
    restart_clicked = Signal()

    def __init__(self, job: SetupJob) -> None:
        super().__init__()
        self._job = job
        self._shown_state = job.state
        self._is_queued = False
        self._blocked = ""  # why an offered update must wait
        self.title, self.facts = label("verdict"), set_object_name(ElidedLabel(), "muted")
        self.progress, self.amount = QProgressBar(textVisible=False), label("muted")
        self.failure, self.build, self.disk = label("error", wrap=True), label("muted", wrap=True), label("muted")
        self.mirrors = set_object_name(NoScrollComboBox(), "mirrors")
        self.hint, self.queued = label("muted", wrap=True), label("good", wrap=True)
        self.switch = push_button("switchSetup")  # Pause, Continue or Retry
        self.choose_mirror, self.details = push_button("chooseMirror"), push_button("setupDetails")
        self.take_back, self.restart = push_button("takeBackStart"), push_button("restartWindow")
        self.close_button = IconButton("close", "flat")
        self._arrange()
        self.switch.clicked.connect(lambda: job.pause() if job.state == "running" else job.start())
        self.choose_mirror.clicked.connect(job.measure_mirrors)
        self.mirrors.activated.connect(lambda row: job.choose_mirror(self.mirrors.itemData(row)))
        self.details.clicked.connect(self._show_details)
        self.take_back.clicked.connect(self.take_back_clicked)
        self.restart.clicked.connect(self.restart_clicked)
        self.close_button.clicked.connect(self.hide)
        job.changed.connect(self.refresh)
        self.retranslate()

    def _arrange(self) -> None:
        inner = vertical_layout(spacing=SPACING - 2)
        buttons = (self.mirrors, self.choose_mirror, self.details, self.switch, self.restart, self.close_button)
        inner.addLayout(horizontal_layout(self.title, (self.facts, 1), *buttons, spacing=SPACING - 2))
        inner.addLayout(horizontal_layout((self.progress, 1), self.amount, spacing=2 * SPACING))
        inner.addWidget(self.failure)
        inner.addLayout(horizontal_layout((self.build, 1), self.disk, spacing=2 * SPACING))
        inner.addWidget(self.hint)
        inner.addLayout(horizontal_layout((self.queued, 1), self.take_back))
        self.set_content(inner, _MIN_HEIGHT)

    def show_queued(self, is_queued: bool) -> None:
        """Show whether a run starts at the end."""
        self._is_queued = is_queued
        self.refresh()

    def set_restart_blocked(self, reason: str) -> None:
        """`reason`: why the window must not restart now; empty: it may."""
        self.restart.setEnabled(not reason)
        self.restart.setToolTip(reason)

    def set_update_blocked(self, reason: str) -> None:
        """`reason`: why an offered update must wait; empty: it need not."""
        self._blocked = reason
        self.refresh()

    # --- display ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show the state of the job."""
        job, is_open = self._job, self._job.state not in ("offered", "finished")
        has_mirrors = bool(job.mirrors) or job.is_measuring
        is_blocked = job.state == "offered" and bool(self._blocked)
        self.switch.setEnabled(not is_blocked)
        held = self.window().focusWidget()
        for widget, is_shown in (
            (self.progress, is_open),
            (self.amount, is_open),
            (self.failure, bool(job.failure)),
            (self.build, is_open and job.plan is not None),
            (self.disk, is_open and job.plan is not None),
            (self.mirrors, is_open and has_mirrors),
            (self.choose_mirror, is_open and not has_mirrors),
            (self.details, is_open),
            (self.switch, job.state in _SWITCH_TEXTS),
            (self.close_button, installation.is_complete and job.state != "running"),
            (self.hint, (not installation.is_complete and not self._is_queued) or is_blocked),
            (self.queued, self._is_queued),
            (self.take_back, self._is_queued),
            (self.restart, job.needs_restart),
        ):
            widget.setVisible(is_shown)
        if held in (self.choose_mirror, self.switch) and held.isHidden():  # Qt would select a widget far away
            successors = (self.mirrors, self.restart, self.close_button)
            next((widget for widget in successors if not widget.isHidden()), self).setFocus()
        set_text_if_changed(self.failure, job.failure)
        if job.state in _SWITCH_TEXTS:
            set_text_if_changed(self.switch, tr(_SWITCH_TEXTS[job.state]))
        possible = "installation.possible_with_data" if installation.has_data else "installation.possible"
        set_text_if_changed(self.hint, self._blocked if is_blocked else tr(possible))
        self._show_heading()
        self._show_progress()
        if job.plan is not None:
            self._show_plan(job.plan)
        self._show_mirrors()
        self.update_height()

    def _show_heading(self) -> None:
        job = self._job
        is_update = job.state == "running" and installation.is_complete
        key = "installation.title.updating" if is_update else _TITLES[job.state]
        title = tr("installation.title.restart" if job.needs_restart else key)
        set_text_if_changed(self.title, title)
        stage = job.stage.text if job.stage else ""
        facts = {"offered": job.reason, "running": stage, "paused": tr("installation.kept")}
        self.facts.setText(tr("installation.after_restart") if job.needs_restart else facts.get(job.state, ""))
        if job.state != self._shown_state:
            self._shown_state = job.state
            self.title.setProperty("level", _LEVELS.get(job.state, "text"))
            restyle(self.title)
            announce(self, job.failure or title)

    def _show_progress(self) -> None:
        """Amount, speed and time left of the download; a busy indicator before and after it."""
        job, progress = self._job, self._job.progress
        is_loading = job.state == "running" and progress is not None and progress.done < progress.total
        fraction = progress.done / progress.total if progress and progress.total else 0.0
        show_fraction(self.progress, None if job.state == "running" and not is_loading else fraction)
        parts = []
        if progress is not None:
            parts.append(formatting.format_progress(progress.done, progress.total, "bytes"))
            if is_loading and progress.rate is not None:
                parts.append(_format_rate(progress.rate))
            if is_loading and progress.eta_s is not None:
                parts.append(tr("window.time_left", time=formatting.format_duration(progress.eta_s)))
        set_text_if_changed(self.amount, "  ·  ".join(parts))

    def _show_plan(self, plan: SetupPlan) -> None:
        build = tr("installation.build", torch=plan.torch, source=plan.source, reason=plan.reason)
        needed, free = formatting.format_bytes(plan.needed), formatting.format_bytes(plan.free)
        set_text_if_changed(self.build, build)
        set_text_if_changed(self.disk, tr("installation.disk", needed=needed, free=free))
        level = "bad" if plan.needed > plan.free else ""
        if self.disk.property("level") != level:
            self.disk.setProperty("level", level)
            restyle(self.disk)

    def _show_mirrors(self) -> None:
        """List the mirrors as they are measured."""
        combo, model, found = self.mirrors, self.mirrors.model(), self._job.mirrors
        assert isinstance(model, QStandardItemModel)
        if combo.count() > len(found):
            combo.clear()
        for mirror in found[combo.count() :]:
            combo.addItem("", mirror.name)
        for row, mirror in enumerate(found):
            combo.setItemText(row, _format_mirror(mirror))
            model.item(row).setEnabled(mirror.rate > 0)
        is_measuring, used = self._job.is_measuring, self._job.mirror
        combo.setPlaceholderText(tr("installation.measuring" if is_measuring else "installation.choose_mirror"))
        combo.setCurrentIndex(-1 if is_measuring or used is None else combo.findData(used))

    def _show_details(self) -> None:
        _LogDialog(self._job, self.window()).show()

    def retranslate(self) -> None:
        self.choose_mirror.setText(tr("installation.choose_mirror"))
        self.details.setText(tr("window.details"))
        self.mirrors.setAccessibleName(tr("installation.mirror"))
        self.progress.setAccessibleName(tr("common.progress"))
        self.queued.setText(tr("installation.start_queued"))
        self.take_back.setText(tr("installation.take_back"))
        self.restart.setText(tr("installation.restart"))
        self.close_button.setToolTip(tr("common.close"))
        self.close_button.setAccessibleName(tr("common.close"))
        self.refresh()


class _LogDialog(TextDialog):
    """What setup has said, and what it says while the dialog is open."""

    def __init__(self, job: SetupJob, parent: QWidget) -> None:
        super().__init__("setupLog", tr("installation.title.running"), QTextBrowser(), _LOG_SIZE, parent)
        self.text.setPlainText("\n".join(job.lines))
        job.line_added.connect(self._append)

    def _append(self, line: str) -> None:
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(f"\n{line}")  # `append` would interpret HTML


def _format_rate(rate: float) -> str:
    return tr("installation.rate", amount=formatting.format_file_size(rate))


def _format_mirror(mirror: Mirror) -> str:
    speed = _format_rate(mirror.rate) if mirror.rate else tr("installation.no_answer")
    return f"{mirror.label}  ·  {speed}"
