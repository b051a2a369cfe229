"""The run outside of the window: in the tray, on the taskbar's button, and as messages of the desktop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication

from app.own_run import OwnRun
from app.state import glance
from app.state.glance import Glance, Mood
from app.views import words
from app.views.main_window import MainWindow

if TYPE_CHECKING:
    from app.services.taskbar import Progress, Taskbar
    from app.views.tray import Tray

_LOOK_MS: Final = 1000
_COLOURS: Final[dict[Mood, Progress]] = {"working": "normal", "paused": "paused", "bad": "error", "done": "none"}


class Presence(QObject):
    """From the start of a run until a person looks at the window after its end. Signals of the tray go to `own`;
    `show` brings the window back, `leave` stops, saves and quits."""

    def __init__(self, window: MainWindow, own: OwnRun, *, show: Callable[[], None], leave: Callable[[], None]) -> None:
        super().__init__(window)
        self._window, self._own, self._show, self._leave = window, own, show, leave
        self.tray: Tray | None = None
        self.taskbar: Taskbar | None = None
        self._shown: tuple[Glance, str] | None = None
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self.look)
        own.beginning.connect(self._on_beginning)
        own.changed.connect(self._on_changed)

    def _on_beginning(self) -> None:
        self._shown = None
        self._timer.start()

    def _on_changed(self) -> None:
        if self._timer.isActive():
            self.look()

    def look(self) -> None:
        """Show what has changed since the last look."""
        now = glance.of(self._own.machine, self._own.record.metrics.last("train_loss"))
        if now.is_over and QApplication.activeWindow() is not None:
            self.vanish()  # somebody sees how it ended
        elif (now, words.language()) != self._shown:
            self._shown = (now, words.language())
            self._display(now)

    def _display(self, now: Glance) -> None:
        if self._window.isVisible():
            state: Progress = "unknown" if now.permille is None and now.mood == "working" else _COLOURS[now.mood]
            self._show_on_taskbar(state, now.permille or 0)
        found = self._find_tray()
        if found is not None:
            found.display(Path(self._own.machine.run_dir).name or "Traindeck", now, self._own.machine)

    def _show_on_taskbar(self, state: Progress, permille: int = 0) -> None:
        if self.taskbar is None and os.name == "nt":
            from app.services.taskbar import Taskbar

            self.taskbar = Taskbar()
        if self.taskbar is not None:
            self.taskbar.display(int(self._window.winId()), state, permille)

    def _find_tray(self) -> Tray | None:
        from app.views import tray  # with its menu and icons, which the first picture lacks

        if self.tray is None and tray.has_tray():
            self.tray = tray.Tray(self._window.windowIcon(), self)
            self.tray.show_asked.connect(self._show)
            self.tray.pause_asked.connect(self._own.pause)
            self.tray.resume_asked.connect(self._own.resume)
            self.tray.stop_asked.connect(self._own.stop)
            self.tray.quit_asked.connect(self._leave)
        return self.tray

    def vanish(self) -> None:
        """Nothing but the window."""
        self._timer.stop()
        self._shown = None
        if self.tray is not None:
            self.tray.vanish()
        if self._window.isVisible():
            self._show_on_taskbar("none")
