"""Desktop notifications about a run: see `app.core.notifications`."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.core.active_run import ActiveRun
from app.core.notifications import Notification, NotificationFilter
from app.core.settings import Settings
from app.texts import tr
from app.widgets import formatting
from app.window.desktop_controller import DesktopStatusController
from app.window.main_window import MainWindow
from trainer_core.protocol import AnyEvent


class Notifier(QObject):
    """Notifies through the tray icon, if there is one, and the taskbar entry of the window."""

    def __init__(
        self, window: MainWindow, active_run: ActiveRun, desktop_status: DesktopStatusController, settings: Settings
    ) -> None:
        super().__init__(window)
        self._window, self._active_run, self._settings = window, active_run, settings
        self._desktop_status = desktop_status
        self._filter = NotificationFilter()
        active_run.event_received.connect(self._on_event)
        active_run.ended.connect(self._on_run_ended)

    def toggle(self) -> None:
        self._settings.notifications = not self._settings.notifications

    def _on_event(self, event: AnyEvent) -> None:
        self.notify(self._filter.process(event))

    def _on_run_ended(self) -> None:
        restarts = self._active_run.auto_restart.pending is not None
        self.notify(self._filter.on_run_ended(self._active_run.machine, will_restart=restarts))

    def notify(self, notification: Notification | None) -> None:
        """Show a notification, unless the window is active or notifications are disabled."""
        if notification is None or not self._settings.notifications or QApplication.activeWindow() is not None:
            return
        if self._desktop_status.tray is not None:
            name = Path(self._active_run.machine.run_dir).name or "Traindeck"
            bad = notification.kind not in ("finished", "queue_done")
            self._desktop_status.tray.show_message(name, _format_notification(notification), bad=bad)
        QApplication.alert(self._window)


def _format_notification(notification: Notification) -> str:
    step = formatting.format_count(notification.step)
    match notification.kind:
        case "finished" if notification.loss is not None:
            loss = formatting.format_loss(notification.loss)
            return tr("window.run_has_finished_steps_steps", steps=step, loss=loss)
        case "finished":
            return tr("window.run_has_finished_steps_steps_2", steps=step)
        case "failed" if not notification.code:
            return tr("window.the_trainer_ended_unexpectedly")
        case "not_a_number":
            return tr("window.loss_not_number_any_more", step=step)
        case "queue_held":
            return tr("window.queue_waits_run_has_failed")
        case "queue_done":
            return tr("window.queue_done_nothing_waits_any")
    return formatting.localized_message(notification.code, notification.params)
