"""Status of the run in the system tray and in the taskbar."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication

from app.core.active_run import ActiveRun
from app.core.run_state import RunState
from app.theme.icons import RunIndicator
from app.window.main_window import MainWindow

if TYPE_CHECKING:
    from app.services.taskbar import ProgressState, TaskbarProgress
    from app.window.tray_icon import TrayIcon

_REFRESH_MS: Final = 1000
_INDICATORS: Final[dict[RunState, RunIndicator]] = {
    RunState.IDLE: "done",
    RunState.PAUSED: "paused",
    RunState.FINISHED: "done",
    RunState.STOPPED: "done",
    RunState.FAILED: "bad",
    RunState.CRASHED: "bad",
}
_TASKBAR_STATES: Final[dict[RunIndicator, ProgressState]] = {
    "working": "normal",
    "paused": "paused",
    "bad": "error",
    "done": "none",
}


class DesktopStatusController(QObject):
    """Active from the start of a run until the window is active after its end."""

    def __init__(
        self,
        window: MainWindow,
        active_run: ActiveRun,
        *,
        show_window: Callable[[], None],
        stop_and_quit: Callable[[], None],
    ) -> None:
        super().__init__(window)
        self._window, self._active_run = window, active_run
        self._show_window, self._stop_and_quit = show_window, stop_and_quit
        self.tray: TrayIcon | None = None
        self.taskbar: TaskbarProgress | None = None
        self._timer = QTimer(self, interval=_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)
        active_run.about_to_start.connect(self._timer.start)
        active_run.state_changed.connect(self._on_run_changed)

    def _on_run_changed(self) -> None:
        if self._timer.isActive():
            self.refresh()

    def refresh(self) -> None:
        machine = self._active_run.machine
        indicator = _INDICATORS.get(machine.state, "working")
        if not machine.is_active and QApplication.activeWindow() is not None:
            self.hide()
            return
        if self._window.isVisible():
            unknown = machine.progress is None and indicator == "working"
            self._show_on_taskbar("unknown" if unknown else _TASKBAR_STATES[indicator], machine.progress or 0.0)
        tray = self._ensure_tray()
        if tray is not None:
            tray.display(machine, self._active_run.record.metrics.last_value("train_loss"), indicator)

    def _show_on_taskbar(self, state: ProgressState, progress: float = 0.0) -> None:
        if self.taskbar is None and os.name == "nt":
            from app.services.taskbar import TaskbarProgress

            self.taskbar = TaskbarProgress()
        if self.taskbar is not None:
            self.taskbar.set_progress(int(self._window.winId()), state, round(1000 * progress))

    def _ensure_tray(self) -> TrayIcon | None:
        from app.window import tray_icon  # imported with the first run

        if self.tray is None and tray_icon.is_tray_available():
            self.tray = tray_icon.TrayIcon(self._window.windowIcon(), self._window.menus, self)
            self.tray.show_requested.connect(self._show_window)
            self.tray.quit_requested.connect(self._stop_and_quit)
        return self.tray

    def hide(self) -> None:
        """Hide the tray icon and the taskbar progress."""
        self._timer.stop()
        if self.tray is not None:
            self.tray.hide()
        if self._window.isVisible():
            self._show_on_taskbar("none")
