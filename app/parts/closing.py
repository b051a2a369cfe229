"""Closing the window while a run is on: the question, hiding it, and stopping first."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication

from app.own_run import OwnRun
from app.parts.presence import Presence
from app.views.main_window import MainWindow


class Closing(QObject):
    """Decides with the person; `close` saves the settings and closes. `more`: another run starts by itself."""

    def __init__(
        self, window: MainWindow, own: OwnRun, *, close: Callable[[], None], more: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(window)
        self._window, self._own, self._close, self._more = window, own, close, more
        self._waiting = False  # for the trainer to end, to close then
        self.presence = Presence(window, own, show=self._come_back, leave=self._stop_and_close)
        window.close_asked.connect(self._on_asked)

    def on_run_ended(self) -> bool:
        """The run is over: close if that was waited for, or come back from the tray. Returns whether it closed."""
        if self._waiting:
            self._close()
        elif self._window.isHidden() and not self._more():
            self._come_back()
        return self._waiting

    def vanish(self) -> None:
        """Nothing of the window is to remain."""
        self.presence.vanish()
        QGuiApplication.setQuitOnLastWindowClosed(True)

    def _on_asked(self) -> None:
        if not self._own.machine.is_active:
            self._close()
        elif not self._waiting:
            from app.views import dialogs, tray

            dialogs.ask_closing(self._window, tray=tray.has_tray(), keep=self._keep, stop=self._stop_and_close)

    def _keep(self) -> None:
        if not self._own.machine.is_active and not self._more():
            return  # it ended while the question stood there: no tray, so nothing to come back from
        QGuiApplication.setQuitOnLastWindowClosed(False)
        self.presence.look()
        self._window.hide()
        if self.presence.tray is not None:
            self.presence.tray.say_going_on()

    def _come_back(self) -> None:
        QGuiApplication.setQuitOnLastWindowClosed(True)
        if self._window.isMinimized():
            self._window.setWindowState(self._window.windowState() & ~Qt.WindowState.WindowMinimized)
        self._window.show()
        self._window.raise_()
        self._window.activateWindow()

    def _stop_and_close(self) -> None:
        self._come_back()
        self._waiting = True
        self._own.stop()
        if not self._own.machine.is_active:  # it ended while the question stood there
            self._close()
