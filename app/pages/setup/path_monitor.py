"""Inspection of paths in a thread: network drives are slow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.core.sources import SourceSummary, summarize_sources

_DEBOUNCE_MS: Final = 200
_RETRY_MS: Final = 3_000  # while there is a problem: a removable drive or network share may come back


class PathMonitor(QObject):
    """Inspects paths when they change, and again while the result is a problem."""

    changed = Signal()
    files_changed = Signal()  # another result of the same paths
    _inspected = Signal(object, object)  # paths, SourceSummary

    def __init__(
        self,
        get_paths: Callable[[], list[str]],
        parent: QObject,
        inspect: Callable[[list[str], Callable[[], bool]], SourceSummary] = summarize_sources,
    ) -> None:
        """`inspect(paths, should_continue)` runs in a thread."""
        super().__init__(parent)
        self._get_paths, self._inspect = get_paths, inspect
        self.paths: list[str] = []
        self.result: SourceSummary | None = None  # None: not known yet, or there are no paths
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._start)
        self._inspected.connect(self._on_inspected)

    @property
    def is_pending(self) -> bool:
        """Whether there are paths that are not inspected yet."""
        return self.result is None and bool(self.paths)

    @property
    def has_problem(self) -> bool:
        return self.result is not None and self.result.has_problem

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

    def _on_inspected(self, paths: list[str], result: SourceSummary) -> None:
        if paths != self.paths:
            return
        before, self.result = self.result, result
        if before not in (None, result):
            self.files_changed.emit()
        self.changed.emit()
        if result.has_problem:
            self._timer.start(_RETRY_MS)
