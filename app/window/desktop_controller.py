"""Status of the run in the system tray and in the taskbar, and desktop notifications."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication, QSystemTrayIcon

from app.core.active_run import ActiveRun
from app.core.run_state import RunState, RunStateMachine
from app.texts import tr
from app.theme.icons import RunIndicator, add_status_badge
from app.widgets import formatting
from app.window.main_window import MainWindow

if TYPE_CHECKING:
    from app.services.taskbar import ProgressState, TaskbarProgress

_REFRESH_MS: Final = 1000
_MAX_TOOLTIP_LENGTH: Final = 127  # characters; Windows truncates longer ones
_INDICATORS: Final[dict[RunState, tuple[RunIndicator, ProgressState]]] = {
    RunState.IDLE: ("done", "none"),
    RunState.PAUSED: ("paused", "paused"),
    RunState.FINISHED: ("done", "none"),
    RunState.STOPPED: ("done", "none"),
    RunState.FAILED: ("bad", "error"),
    RunState.CRASHED: ("bad", "error"),
}


class DesktopStatusController(QObject):
    """Active from the start of a run until the window is active after its end. `tray`: None before the first run,
    and without a system tray."""

    def __init__(self, window: MainWindow, active_run: ActiveRun) -> None:
        super().__init__(window)
        self._window, self._active_run = window, active_run
        self.tray: QSystemTrayIcon | None = None
        self._indicator: RunIndicator | None = None  # of the icon
        self._taskbar: TaskbarProgress | None = None
        self._timer = QTimer(self, interval=_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)
        active_run.about_to_start.connect(self._timer.start)
        active_run.state_changed.connect(lambda: self.refresh() if self._timer.isActive() else None)

    def show_message(self, title: str, text: str, *, warning: bool = False) -> None:
        """Show a notification, if there is a tray icon."""
        kinds = QSystemTrayIcon.MessageIcon
        if self.tray is not None:
            self.tray.showMessage(title, text, kinds.Warning if warning else kinds.Information)

    def refresh(self) -> None:
        machine = self._active_run.machine
        if not machine.is_active and QApplication.activeWindow() is not None:
            self.hide()
            return
        indicator, progress_state = _INDICATORS.get(machine.state, ("working", "normal"))
        if machine.progress is None and indicator == "working":
            progress_state = "unknown"
        self._show_on_taskbar(progress_state, machine.progress or 0.0)
        if self.tray is None and QSystemTrayIcon.isSystemTrayAvailable():
            self.tray = self._create_tray()
        if self.tray is None:
            return
        if indicator != self._indicator:
            self._indicator = indicator
            self.tray.setIcon(add_status_badge(self._window.windowIcon(), indicator))
        tooltip = _format_tooltip(machine, self._active_run.record.metrics.last_value("train_loss"))
        self.tray.setToolTip(tooltip[:_MAX_TOOLTIP_LENGTH])
        self.tray.show()

    def _create_tray(self) -> QSystemTrayIcon:
        tray, show_window = QSystemTrayIcon(self), self._window.menus.actions["show_window"]

        def on_activated(reason: QSystemTrayIcon.ActivationReason) -> None:
            if reason is not QSystemTrayIcon.ActivationReason.Context:
                show_window.trigger()

        tray.setContextMenu(self._window.menus.tray_menu)
        tray.activated.connect(on_activated)
        tray.messageClicked.connect(show_window.trigger)
        return tray

    def _show_on_taskbar(self, state: ProgressState, progress: float = 0.0) -> None:
        if os.name != "nt" or not self._window.isVisible():
            return
        if self._taskbar is None:
            from app.services.taskbar import TaskbarProgress

            self._taskbar = TaskbarProgress()
        self._taskbar.set_progress(int(self._window.winId()), state, round(1000 * progress))

    def hide(self) -> None:
        """Hide the tray icon and the taskbar progress."""
        self._timer.stop()
        if self.tray is not None:
            self.tray.hide()
        self._show_on_taskbar("none")


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
