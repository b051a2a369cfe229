"""Info bars above the pages: an earlier run on display, a pending restart, an interrupted run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal

from app.texts import tr
from app.widgets import formatting
from app.widgets.basic import push_button
from app.widgets.notice_strip import InfoBar
from trainer_core.runs.run_dir import RunSummary

if TYPE_CHECKING:
    from app.core.run_state import ErrorInfo
    from trainer_core.restart_policy import Restart

_MIDDLE = Qt.TextElideMode.ElideMiddle  # names of runs differ at their ends


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """An earlier run on display."""

    summary: RunSummary
    loaded_fraction: float = 1.0  # of its events
    can_resume: bool = False


class ViewedRunBar(InfoBar):
    """Names the earlier run on display. Hidden while the window displays its own."""

    back_pressed = Signal()
    resume_pressed = Signal()

    def __init__(self) -> None:
        self.resume, self.back = push_button("resumeViewed"), push_button("backToCurrent")
        super().__init__(self.resume, self.back, elide_mode=_MIDDLE)
        self._viewed_run: ViewedRun | None = None
        self.resume.clicked.connect(self.resume_pressed)
        self.back.clicked.connect(self.back_pressed)
        self.retranslate()

    def display(self, viewed: ViewedRun | None) -> None:
        if viewed != self._viewed_run:
            self._viewed_run = viewed
            self._update()

    def _update(self) -> None:
        viewed = self._viewed_run
        if viewed is None:
            self.set_message("")
            return
        run = viewed.summary
        if viewed.loaded_fraction < 1.0:
            self.set_message(tr("window.opening_name_share", name=run.name, share=f"{viewed.loaded_fraction:.0%}"))
        else:
            state, step = formatting.format_stored_run_state(run.state), formatting.format_count(run.step)
            self.set_message(tr("window.showing_run_name_state_at", name=run.name, state=state, step=step))
        self.resume.setVisible(run.resumable)
        self.resume.setEnabled(viewed.can_resume)

    def retranslate(self) -> None:
        self.resume.setText(tr("window.resume_this_run"))
        self.back.setText(tr("common.close"))
        self._update()


class RestartBar(InfoBar):
    """Counts down to an automatic restart."""

    restart_now_pressed = Signal()
    cancel_pressed = Signal()

    def __init__(self) -> None:
        self.restart_now, self.cancel = push_button("restartNow"), push_button("cancelRestart")
        super().__init__(self.restart_now, self.cancel, icon_name="again")
        self.restart_now.clicked.connect(self.restart_now_pressed)
        self.cancel.clicked.connect(self.cancel_pressed)
        self.retranslate()

    def display(self, pending: Restart | None, remaining_s: float, error: ErrorInfo | None) -> None:
        """`error`: what ended the run."""
        if pending is None:
            self.set_message("")
            return
        text = tr(
            "window.restarting_in_seconds_s_attempt",
            seconds=round(remaining_s),
            reason=formatting.format_failure(pending.reason, error),
            attempt=pending.attempt,
            of=pending.limit,
            step=formatting.format_count(pending.step),
        )
        self.set_message(text)

    def retranslate(self) -> None:
        self.restart_now.setText(tr("window.now"))
        self.cancel.setText(tr("common.cancel"))


class InterruptedRunBar(InfoBar):
    """Offers to resume a run whose trainer was killed."""

    resume_pressed = Signal()
    dismiss_pressed = Signal()

    def __init__(self) -> None:
        self.resume, self.dismiss = push_button("resumeInterrupted"), push_button("dismissInterrupted")
        super().__init__(self.resume, self.dismiss, icon_name="again", elide_mode=_MIDDLE)
        self._run: RunSummary | None = None
        self.resume.clicked.connect(self.resume_pressed)
        self.dismiss.clicked.connect(self.dismiss_pressed)
        self.retranslate()

    def display(self, run: RunSummary | None) -> None:
        self._run = run
        if run is None:
            self.set_message("")
            return
        step, when = formatting.format_count(run.step), formatting.format_timestamp(run.started + run.seconds)
        self.set_message(tr("window.run_name_was_interrupted_at", name=run.name, step=step, when=when))

    def retranslate(self) -> None:
        self.resume.setText(tr("window.resume"))
        self.dismiss.setText(tr("window.dismiss_2"))
        self.display(self._run)
