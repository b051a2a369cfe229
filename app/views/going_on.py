"""Strips about going on: a restart that is counted down to, and a run whose trainer died while nobody looked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from app.views import words
from app.views.strip import Strip
from app.views.widgets import button

if TYPE_CHECKING:
    from app.state.restarting import Pending
    from app.state.run_machine import ErrorInfo
    from trainer_core.runs.run_dir import RunSummary


class RestartStrip(Strip):
    """Shown while a restart is pending."""

    now_pressed = Signal()
    cancel_pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        self.now, self.cancel = button("restartNow"), button("cancelRestart")
        super().__init__(self.now, self.cancel, sign="again", parent=parent)
        self._shown: tuple[Pending, ErrorInfo | None, int] | None = None
        self.now.clicked.connect(self.now_pressed)
        self.cancel.clicked.connect(self.cancel_pressed)
        self.retranslate()

    def display(self, pending: Pending | None, error: ErrorInfo | None, now: float) -> None:
        """`error`: what the trainer said at its end. `now`: seconds of the clock that `pending` counts on."""
        shown = None if pending is None else (pending, error, round(pending.seconds(now)))
        if shown == self._shown:
            return
        self._shown = shown
        if shown is None:
            self.say("")
            return
        text = self.tr("Restarting in {seconds} s ({attempt} of {of}) from step {step}: {reason}")
        waiting, said, seconds = shown
        told = {"attempt": waiting.attempt, "of": waiting.of, "step": words.count(waiting.step)}
        self.say(text.format(seconds=seconds, reason=words.failure(waiting.reason, said), **told))

    def retranslate(self) -> None:
        self.now.setText(self.tr("Now"))
        self.cancel.setText(self.tr("Cancel"))
        shown, self._shown = self._shown, None
        if shown is not None:
            waiting, said, seconds = shown
            self.display(waiting, said, waiting.due - seconds)


class InterruptedStrip(Strip):
    """Shown for a run that broke off, until a person has decided."""

    resume_pressed = Signal()
    dismiss_pressed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        self.resume, self.dismiss = button("resumeInterrupted"), button("dismissInterrupted")
        middle = Qt.TextElideMode.ElideMiddle  # of a long name
        super().__init__(self.resume, self.dismiss, sign="again", mode=middle, parent=parent)
        self._run: RunSummary | None = None
        self.resume.clicked.connect(self.resume_pressed)
        self.dismiss.clicked.connect(self.dismiss_pressed)
        self.retranslate()

    def display(self, run: RunSummary | None) -> None:
        self._run = run
        if run is None:
            self.say("")
            return
        text = self.tr("The run {name} was interrupted at step {step}, {when}.")
        self.say(text.format(name=run.name, step=words.count(run.step), when=words.when(run.started + run.seconds)))

    def retranslate(self) -> None:
        self.resume.setText(self.tr("Resume"))
        self.dismiss.setText(self.tr("Dismiss"))
        self.display(self._run)
