"""Long work on the event loop a few ms at a time: painting and input come in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

_SLICE_S: Final = 0.008
_BREATH_MS: Final = 1


class Slices(QObject):
    """Goes through an iterator whose steps are short. At most one at a time: a new one takes the place of the last."""

    ended = Signal()  # it went through; not after `stop`

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._steps: Iterator[object] | None = None
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)

    def start(self, steps: Iterator[object]) -> None:
        self._steps = steps
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        self._steps = None

    def _slice(self) -> None:
        deadline, steps = time.perf_counter() + _SLICE_S, self._steps
        while self._steps is steps and steps is not None and time.perf_counter() < deadline:
            if next(steps, self) is self:
                self.stop()
                self.ended.emit()
