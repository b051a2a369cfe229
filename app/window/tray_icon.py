"""System tray icon with the status and the commands of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from app.core.run_state import RunStateMachine
from app.texts import tr
from app.theme.icons import RunIndicator, add_status_badge
from app.widgets import formatting
from app.window.commands import Menus

_MAX_TOOLTIP_LENGTH: Final = 127  # characters; Windows truncates longer ones


def is_tray_available() -> bool:
    return QSystemTrayIcon.isSystemTrayAvailable()


class TrayIcon(QSystemTrayIcon):
    """Its menu has the run's actions of `menus`."""

    show_requested = Signal()
    quit_requested = Signal()

    def __init__(self, icon: QIcon, menus: Menus, parent: QObject | None = None) -> None:
        super().__init__(icon, parent)
        self._base_icon = icon
        self._indicator: RunIndicator | None = None
        self.menu = QMenu()
        self.show_action = self.menu.addAction("", self.show_requested.emit)
        self.menu.addSeparator()
        self.menu.addActions([menus.actions[name] for name in ("pause", "resume", "stop")])
        self.menu.addSeparator()
        self.quit_action = self.menu.addAction("", self.quit_requested.emit)
        self.menu.setDefaultAction(self.show_action)
        self.setContextMenu(self.menu)
        self.activated.connect(self._on_activated)
        self.messageClicked.connect(self.show_requested)

    def display(self, machine: RunStateMachine, loss: float | None, indicator: RunIndicator) -> None:
        """Display the status of a run; `loss` is the latest."""
        if indicator != self._indicator:
            self._indicator = indicator
            self.setIcon(add_status_badge(self._base_icon, indicator))
        tooltip = _format_tooltip(machine, loss)[:_MAX_TOOLTIP_LENGTH]
        if tooltip != self.toolTip():
            self.setToolTip(tooltip)
        self.show_action.setText(tr("window.show_window"))
        self.quit_action.setText(tr("window.stop_save_and_quit"))
        self.quit_action.setEnabled(machine.is_active)
        self.show()

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is not QSystemTrayIcon.ActivationReason.Context:
            self.show_requested.emit()


def _format_tooltip(machine: RunStateMachine, loss: float | None) -> str:
    """Return name, state, and the known ones of step, loss and remaining time."""
    parts = [formatting.format_run_state(machine.state), formatting.format_position(machine)]
    if loss is not None:
        parts.append(tr("window.loss", loss=formatting.format_loss(loss)))
    if machine.eta_s is not None:
        hours, minutes = divmod(int(machine.eta_s // 60) + 1, 60)  # seconds would change the tooltip constantly
        if hours:
            parts.append(tr("window.hours_left", hours=hours, minutes=minutes))
        else:
            parts.append(tr("window.minutes_left", minutes=minutes))
    name = Path(machine.run_dir).name or "Traindeck"
    return "\n".join([name[:60], " · ".join(filter(None, parts))])
