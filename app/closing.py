"""Closing the window while a run is on: the question, the tray, and stopping first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject
from PySide6.QtGui import QGuiApplication

from app.views.main_window import MainWindow

if TYPE_CHECKING:
    from app.views.tray import Tray


class Closing(QObject):
    """Decides with the person; `stop` asks the trainer to stop, `close` saves the settings and closes."""

    def __init__(
        self,
        window: MainWindow,
        *,
        is_active: Callable[[], bool],
        stop: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        super().__init__(window)
        self._window, self._is_active, self._stop, self._close = window, is_active, stop, close
        self._waiting = False  # for the trainer to end, to close then
        self._tray: Tray | None = None
        window.close_asked.connect(self._on_asked)

    def on_run_ended(self) -> bool:
        """The run is over: close if that was waited for, or come back from the tray. Returns whether it closed."""
        if self._waiting:
            self._close()
        elif self._tray is not None and self._window.isHidden():
            self._come_back()
        return self._waiting

    def vanish(self) -> None:
        """Nothing of the window is to remain."""
        if self._tray is not None:
            self._tray.vanish()
        QGuiApplication.setQuitOnLastWindowClosed(True)

    def _on_asked(self) -> None:
        if not self._is_active():
            self._close()
        elif not self._waiting:
            from app.views import dialogs, tray

            dialogs.ask_closing(self._window, tray=tray.has_tray(), keep=self._keep, stop=self._stop_and_close)

    def _keep(self) -> None:
        from app.views.tray import Tray

        if self._tray is None:
            self._tray = Tray(self._window.windowIcon(), self)
            self._tray.show_asked.connect(self._come_back)
            self._tray.stop_asked.connect(self._stop_and_close)
        QGuiApplication.setQuitOnLastWindowClosed(False)
        self._tray.appear()
        self._window.hide()

    def _come_back(self) -> None:
        self.vanish()
        self._window.show()
        self._window.raise_()
        self._window.activateWindow()

    def _stop_and_close(self) -> None:
        self._come_back()
        self._waiting = True
        self._stop()
        if not self._is_active():  # it ended while the question stood there
            self._close()
