"""Messages of the desktop about a run, for somebody who looks at another window: see `app.state.attention`."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.own_run import OwnRun
from app.parts.presence import Presence
from app.services.trainer_process import Outcome
from app.state.attention import Attention, Notice
from app.state.settings import Settings
from app.views import words
from app.views.main_window import MainWindow
from trainer_core.protocol import AnyEvent


class Notifier(QObject):
    """Tells what counts, each once: through the tray where there is one, and by the window's entry in the taskbar."""

    def __init__(self, window: MainWindow, own: OwnRun, presence: Presence, settings: Settings) -> None:
        super().__init__(window)
        self._window, self._own, self._presence, self._settings = window, own, presence, settings
        self._attention = Attention()
        own.told.connect(self._on_told)
        own.ended.connect(self._on_ended)

    def switch(self) -> None:
        """On, or off: kept with the settings."""
        self._settings.notifications = not self._settings.notifications

    def _on_told(self, event: AnyEvent) -> None:
        self.tell(self._attention.add(event))

    def _on_ended(self, outcome: Outcome) -> None:
        restarts = self._own.restarting.pending is not None
        self.tell(self._attention.ended(self._own.machine, restarts=restarts))

    def tell(self, notice: Notice | None) -> None:
        """Show a notice, unless the person sees the window or wants none."""
        if notice is None or not self._settings.notifications or QApplication.activeWindow() is not None:
            return
        text = self._text(notice)
        if self._presence.tray is not None:
            name = Path(self._own.machine.run_dir).name or "Traindeck"
            self._presence.tray.say(name, text, bad=notice.kind not in ("finished", "queue_done"))
        QApplication.alert(self._window)

    def _text(self, notice: Notice) -> str:
        match notice.kind:
            case "finished" if notice.loss is not None:
                text = self.tr("The run has finished: {steps} steps, loss {loss}.")
                return text.format(steps=words.count(notice.step), loss=words.loss(notice.loss))
            case "finished":
                return self.tr("The run has finished: {steps} steps.").format(steps=words.count(notice.step))
            case "failed" if not notice.code:
                return self.tr("The trainer ended unexpectedly.")
            case "not_a_number":
                text = self.tr("The loss is not a number any more (step {step}).")
                return text.format(step=words.count(notice.step))
            case "queue_held":
                return self.tr("The queue waits: a run of it has failed.")
            case "queue_done":
                return self.tr("The queue is done: nothing waits any more.")
        return words.message(notice.code, notice.params)
