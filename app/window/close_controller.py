"""Closes the window: asks while a run is active, moves to the tray, or stops the run first."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMessageBox, QSystemTrayIcon

from app.core.active_run import ActiveRun
from app.pages.queue.queue_controller import QueueController
from app.texts import tr
from app.window.desktop_controller import DesktopStatusController
from app.window.main_window import MainWindow


class CloseController(QObject):
    """`close` saves the settings and closes without asking."""

    cancelled = Signal()  # the window stays open, or in the tray

    def __init__(
        self,
        window: MainWindow,
        active_run: ActiveRun,
        queue: QueueController,
        desktop_status: DesktopStatusController,
        close: Callable[[], None],
    ) -> None:
        super().__init__(window)
        self._window, self._active_run, self._queue, self._close = window, active_run, queue, close
        self._desktop_status = desktop_status
        self._close_when_ended = False
        window.menus.connect_actions({"show_window": self._show_window, "stop_and_quit": self._stop_and_close})
        window.close_requested.connect(self._on_close_requested)

    def on_run_ended(self) -> bool:
        """Close if that was requested, or return from the tray. Returns whether the window was closed."""
        if self._close_when_ended:
            self._close()
        elif self._window.isHidden() and not self._queue.will_start_next:
            self._show_window()
        return self._close_when_ended

    def _on_close_requested(self) -> None:
        if not self._active_run.machine.is_active:
            self._close()
        elif not self._close_when_ended:
            self._ask()

    def _ask(self) -> None:
        """Ask what to do with the active run."""
        box = QMessageBox(self._window)
        box.setIcon(QMessageBox.Icon.Question)
        box.setWindowTitle(tr("common.close_dialog_title"))
        box.setText(tr("common.close_dialog_question"))
        if QSystemTrayIcon.isSystemTrayAvailable():
            keep_button = box.addButton(tr("common.keep_training_in_tray"), QMessageBox.ButtonRole.AcceptRole)
            keep_button.clicked.connect(self._keep_in_tray)
        if self._active_run.host:
            leave_button = box.addButton(
                tr("common.close_while_host_trains", host=self._active_run.host), QMessageBox.ButtonRole.AcceptRole
            )
            leave_button.setObjectName("closeAndContinue")
            leave_button.clicked.connect(self._close)
        stop_button = box.addButton(tr("common.stop_and_save"), QMessageBox.ButtonRole.DestructiveRole)
        stop_button.setObjectName("stopAndSave")
        stop_button.clicked.connect(self._stop_and_close)
        cancel = box.addButton(tr("common.cancel"), QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(cancel)
        box.setEscapeButton(cancel)
        box.rejected.connect(self.cancelled)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    def _keep_in_tray(self) -> None:
        self.cancelled.emit()
        if not self._active_run.machine.is_active and not self._queue.will_start_next:
            return  # it ended while the dialog was open: without a tray icon, the window could not be shown again
        QGuiApplication.setQuitOnLastWindowClosed(False)
        self._window.hide()
        self._desktop_status.refresh()
        self._desktop_status.show_message("Traindeck", tr("window.training_in_background"))

    def _show_window(self) -> None:
        QGuiApplication.setQuitOnLastWindowClosed(True)
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
