"""Desktop notifications: the end of a run, a run that waits, and a run whose results are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.core.active_run import ActiveRun
from app.core.run_state import RunState
from app.core.settings import Settings
from app.texts import tr
from app.widgets import formatting
from app.window.desktop_controller import DesktopStatusController
from app.window.main_window import MainWindow
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

NOTIFIED_WARNINGS: Final = frozenset({"disk.waiting", "checkpoint.not_saved", "events.not_written", "pause.no_room"})
"""Warnings that need attention soon: the run waits for disk space, or its results are not saved."""
NOTIFIED_ADVICE: Final = frozenset({"advice.thermal", "advice.battery", "advice.disk_low", "advice.not_finite"})
"""Urgent advice: hardware problems, or a model that no longer learns."""


class Notifier(QObject):
    """Notifies through the tray icon, if there is one, and the taskbar entry; of each run event at most once."""

    def __init__(
        self, window: MainWindow, active_run: ActiveRun, desktop_status: DesktopStatusController, settings: Settings
    ) -> None:
        super().__init__(window)
        self._window, self._active_run, self._settings = window, active_run, settings
        self._desktop_status = desktop_status
        self._sent: set[str] = set()  # codes
        active_run.event_received.connect(self._on_event)
        active_run.ended.connect(self._on_run_ended)

    def toggle(self) -> None:
        self._settings.notifications = not self._settings.notifications

    def notify(self, text: str, *, warning: bool = True) -> None:
        """Show a notification, unless the window is active or notifications are disabled."""
        if not self._settings.notifications or QApplication.activeWindow() is not None:
            return
        name = Path(self._active_run.machine.run_dir).name or "Traindeck"
        self._desktop_status.show_message(name, text, warning=warning)
        QApplication.alert(self._window)

    def _notify_once(self, code: str, text: str) -> None:
        if code not in self._sent:
            self._sent.add(code)
            self.notify(text)

    def _on_event(self, event: AnyEvent) -> None:
        match event:
            case protocol.Hello(resumed_from_step=None):
                self._sent.clear()
            case protocol.Advice(resolved=True, code=code):
                self._sent.discard(code)
            case protocol.Warn(code=code) | protocol.Advice(code=code) if code in NOTIFIED_WARNINGS | NOTIFIED_ADVICE:
                self._notify_once(code, formatting.localized_message(code, event.params))
            case protocol.Step(loss=None) | protocol.BadStep(kind="not_finite", action="rolled_back"):
                text = tr("window.loss_not_finite", step=formatting.format_count(event.step))
                self._notify_once("not_a_number", text)
            case protocol.Phase(phase="training"):
                self._sent.discard("disk.waiting")  # space was available again; a later warning is a new one

    def _on_run_ended(self) -> None:
        if self._active_run.auto_restart.pending is not None:
            return
        self._sent.clear()
        machine = self._active_run.machine
        error, done = machine.last_error, machine.done
        match machine.state:
            case RunState.FINISHED:
                self.notify(_format_finished(machine.step, done), warning=False)
            case RunState.FAILED | RunState.CRASHED if error is not None:
                self.notify(formatting.localized_message(error.code, error.params))
            case RunState.FAILED | RunState.CRASHED:
                self.notify(tr("window.trainer_exited"))


def _format_finished(step: int, done: protocol.Done | None) -> str:
    steps = formatting.format_count(step)
    loss = None if done is None else (done.final_loss if done.best_loss is None else done.best_loss)
    if done is not None and done.reason == "early_stop":
        return tr("window.run_stopped_early", steps=steps, loss=formatting.format_loss(loss))
    if loss is None:
        return tr("window.run_finished", steps=steps)
    return tr("window.run_finished_with_loss", steps=steps, loss=formatting.format_loss(loss))
