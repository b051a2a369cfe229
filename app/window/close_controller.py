"""Closes the window: asks while a run is active, moves to the tray, or stops the run first."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication

from app.core.active_run import ActiveRun
from app.pages.queue.queue_controller import QueueController
from app.texts import tr
from app.window.desktop_controller import DesktopStatusController
from app.window.main_window import MainWindow


class CloseController(QObject):
    """`close` saves the settings and closes without asking."""

    def __init__(
        self,
        window: MainWindow,
        active_run: ActiveRun,
        queue: QueueController,
        *,
        close: Callable[[], None],
    ) -> None:
        super().__init__(window)
        self._window, self._active_run, self._queue, self._close = window, active_run, queue, close
        self._close_when_ended = False
        self.desktop_status = DesktopStatusController(
            window, active_run, show_window=self._show_window, stop_and_quit=self._stop_and_close
        )
        window.close_requested.connect(self._on_close_requested)

    def on_run_ended(self) -> bool:
        """Close if that was requested, or return from the tray. Returns whether the window was closed."""
        if self._close_when_ended:
            self._close()
        elif self._window.isHidden() and not self._queue.will_start_next:
            self._show_window()
        return self._close_when_ended

    def remove_tray_icon(self) -> None:
        self.desktop_status.hide()
        QGuiApplication.setQuitOnLastWindowClosed(True)

    def _on_close_requested(self) -> None:
        if not self._active_run.machine.is_active:
            self._close()
        elif not self._close_when_ended:
            from app.widgets import dialogs
            from app.window import tray_icon

            dialogs.show_close_dialog(
                self._window,
                tray=tray_icon.is_tray_available(),
                keep_training=self._keep_in_tray,
                stop_and_save=self._stop_and_close,
            )

    def _keep_in_tray(self) -> None:
        if not self._active_run.machine.is_active and not self._queue.will_start_next:
            return  # it ended while the dialog was open: without a tray icon, the window could not be shown again
        QGuiApplication.setQuitOnLastWindowClosed(False)
        self.desktop_status.refresh()
        self._window.hide()
        if self.desktop_status.tray is not None:
            self.desktop_status.tray.showMessage("Traindeck", tr("window.training_in_background"))

    def _show_window(self) -> None:
        QGuiApplication.setQuitOnLastWindowClosed(True)
        if self._window.isMinimized():
            self._window.setWindowState(self._window.windowState() & ~Qt.WindowState.WindowMinimized)
        self._window.show()
        self._window.raise_()
        self._window.activateWindow()

    def _stop_and_close(self) -> None:
        self._show_window()
        self._close_when_ended = True
        self._active_run.stop()
        if not self._active_run.machine.is_active:  # it ended while the dialog was open
            self._close()
