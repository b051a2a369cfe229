"""System tray icon with the status and the commands of the run."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from app.core.run_state import RunState, RunStateMachine
from app.core.run_status import RunStatus
from app.texts import tr
from app.theme.icons import add_status_badge
from app.widgets import formatting

_MAX_TOOLTIP_LENGTH: Final = 127  # characters; Windows truncates longer ones


def is_tray_available() -> bool:
    return QSystemTrayIcon.isSystemTrayAvailable()


class TrayIcon(QObject):
    """Its texts are set in `display`, in the language of the window."""

    show_requested = Signal()
    pause_requested = Signal()
    resume_requested = Signal()
    stop_requested = Signal()
    quit_requested = Signal()

    def __init__(self, icon: QIcon, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._base_icon = icon
        self._displayed_status = ""
        self.icon = QSystemTrayIcon(icon, self)
        self.menu = QMenu()
        self.show_action, self.pause_action, self.resume_action, self.stop_action, self.quit_action = (
            self.menu.addAction("") for _ in range(5)
        )
        self.menu.insertSeparator(self.pause_action)
        self.menu.insertSeparator(self.quit_action)
        self.menu.setDefaultAction(self.show_action)
        self.show_action.triggered.connect(self.show_requested)
        self.pause_action.triggered.connect(self.pause_requested)
        self.resume_action.triggered.connect(self.resume_requested)
        self.stop_action.triggered.connect(self.stop_requested)
        self.quit_action.triggered.connect(self.quit_requested)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._on_activated)
        self.icon.messageClicked.connect(self.show_requested)

    def display(self, name: str, status: RunStatus, machine: RunStateMachine) -> None:
        """Display the status of the run `name`."""
        if status.indicator != self._displayed_status:
            self._displayed_status = status.indicator
            self.icon.setIcon(add_status_badge(self._base_icon, status.indicator))
        self.icon.setToolTip(format_tooltip(name, status)[:_MAX_TOOLTIP_LENGTH])
        self.resume_action.setVisible(machine.state is RunState.PAUSED)
        self.pause_action.setVisible(not self.resume_action.isVisible())
        self.pause_action.setEnabled(machine.can_pause)
        self.resume_action.setEnabled(machine.can_resume)
        self.stop_action.setEnabled(machine.can_stop and machine.state is not RunState.STOPPING)
        self.quit_action.setEnabled(machine.is_active)
        self._retranslate()
        self.icon.show()

    def show_message(self, title: str, text: str, *, bad: bool = False) -> None:
        """Show a desktop notification; a click on it shows the window."""
        kind = QSystemTrayIcon.MessageIcon.Warning if bad else QSystemTrayIcon.MessageIcon.Information
        self.icon.showMessage(title, text, kind)

    def show_background_message(self) -> None:
        self.show_message("Traindeck", tr("window.training_goes_on_click_here"))

    def hide(self) -> None:
        self.icon.hide()

    def _retranslate(self) -> None:
        self.show_action.setText(tr("window.show_the_window"))
        self.pause_action.setText(tr("window.pause"))
        self.resume_action.setText(tr("window.resume"))
        self.stop_action.setText(tr("common.stop_and_save"))
        self.quit_action.setText(tr("window.stop_save_and_quit"))

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is not QSystemTrayIcon.ActivationReason.Context:
            self.show_requested.emit()


def format_tooltip(name: str, status: RunStatus) -> str:
    """Return name, state, and the known ones of step, loss and remaining time."""
    parts = [formatting.format_run_state(status.state)]
    if status.step and status.total_steps:
        step, total = formatting.format_count(status.step), formatting.format_count(status.total_steps)
        parts.append(tr("window.step_step_of_total", step=step, total=total))
    elif status.step:
        parts.append(tr("common.step_step", step=formatting.format_count(status.step)))
    if status.loss is not None:
        parts.append(tr("window.loss_loss", loss=formatting.format_loss(status.loss)))
    if status.minutes_left is not None and not status.is_over:
        hours, minutes = divmod(status.minutes_left, 60)
        if hours:
            parts.append(tr("window.about_hours_h_minutes_min", hours=hours, minutes=minutes))
        else:
            parts.append(tr("window.about_minutes_min_left", minutes=minutes))
    return "\n".join([name[:60], " · ".join(parts)])
