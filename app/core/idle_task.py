"""Long work on the event loop in slices of a few ms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

_SLICE_S: Final = 0.008
_YIELD_MS: Final = 1  # between two slices, for painting and input


class IdleTask(QObject):
    """Runs an iterator of short steps. A new task replaces the current one."""

    finished = Signal()  # the iterator is exhausted; not emitted by `stop`

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._steps: Iterator[object] | None = None
        self._timer = QTimer(self, interval=_YIELD_MS)
        self._timer.timeout.connect(self._run_slice)

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    def start(self, steps: Iterator[object]) -> None:
        self._steps = steps
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        self._steps = None

    def _run_slice(self) -> None:
        deadline, steps = time.perf_counter() + _SLICE_S, self._steps
        while self._steps is steps and steps is not None and time.perf_counter() < deadline:
            try:
                is_exhausted = next(steps, self) is self
            except BaseException:
                self.stop()
                raise
            if is_exhausted:
                self.stop()
                self.finished.emit()
