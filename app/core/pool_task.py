"""Blocking work in Qt's thread pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from PySide6.QtCore import QObject, QThreadPool, Signal


class PoolTask(QObject):
    """Calls functions in the thread pool. Connect `finished` to methods of QObjects: lambdas run in the pool."""

    finished = Signal(object)  # the value that the function returned

    def start(self, function: Callable[[], object]) -> None:
        QThreadPool.globalInstance().start(lambda: self._run(function))

    def _run(self, function: Callable[[], object]) -> None:
        result = function()
        with contextlib.suppress(RuntimeError):  # this object was deleted in the meantime
            self.finished.emit(result)
