"""Inspection of paths in a thread: network drives are slow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

_DEBOUNCE_MS: Final = 200
_RETRY_MS: Final = 3_000  # while there is a problem: a removable drive or network share may come back
ResultT = TypeVar("ResultT")


class PathMonitor(QObject, Generic[ResultT]):
    """Inspects paths when they change, and again while the result is a problem."""

    changed = Signal()
    _inspected = Signal(object, object)  # paths, result

    def __init__(
        self,
        get_paths: Callable[[], list[str]],
        inspect: Callable[[list[str], Callable[[], bool]], ResultT],
        is_problem: Callable[[ResultT], bool],
        parent: QObject,
    ) -> None:
        """`inspect(paths, should_continue)` runs in a thread."""
        super().__init__(parent)
        self._get_paths, self._inspect, self._is_problem = get_paths, inspect, is_problem
        self.paths: list[str] = []
        self.result: ResultT | None = None  # None: not known yet, or there are no paths
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._start)
        self._inspected.connect(self._on_inspected)

    @property
    def is_pending(self) -> bool:
        """Whether there are paths that are not inspected yet."""
        return self.result is None and bool(self.paths)

    @property
    def has_problem(self) -> bool:
        return self.result is not None and self._is_problem(self.result)

    def update(self) -> None:
        """Inspect the paths if they have changed."""
        if (paths := self._get_paths()) != self.paths:
            self.paths, self.result = paths, None
            self._timer.start(_DEBOUNCE_MS)

    def refresh(self) -> None:
        """Inspect the paths again."""
        self._timer.start(0)

    def _start(self) -> None:
        if self.paths:
            threading.Thread(target=self._run, args=(self.paths,), daemon=True).start()

    def _run(self, paths: list[str]) -> None:
        result = self._inspect(paths, lambda: self.paths is paths)
        with contextlib.suppress(RuntimeError):  # the window has been closed
            self._inspected.emit(paths, result)

    def _on_inspected(self, paths: list[str], result: ResultT) -> None:
        if paths == self.paths:
            self.result = result
            self.changed.emit()
            if self._is_problem(result):
                self._timer.start(_RETRY_MS)
