"""What the chosen data seems to be: looked at in a thread, for a share may be slow and a folder large."""

from __future__ import annotations

import contextlib
import threading

from PySide6.QtCore import QObject, Signal

from app.state.data_glance import Glance, glance


class Glancer(QObject):
    """`look` at paths; `found` carries them and the `Glance`, for the newest paths only."""

    found = Signal(list, object)  # paths, Glance

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._newest: list[str] = []
        self._done.connect(self._on_done)

    _done = Signal(list, object)

    def look(self, paths: list[str]) -> None:
        self._newest = paths
        threading.Thread(target=self._look, args=(paths,), daemon=True).start()

    def _look(self, paths: list[str]) -> None:
        seen = glance(paths, wanted=lambda: self._newest is paths)
        with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
            self._done.emit(paths, seen)

    def _on_done(self, paths: list[str], seen: Glance) -> None:
        if paths == self._newest:
            self.found.emit(paths, seen)
