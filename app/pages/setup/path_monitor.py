"""Inspection of the paths of a field in a thread: network drives are slow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

from app.pages.setup.form import SetupForm

_DEBOUNCE_MS: Final = 200
_RETRY_MS: Final = 3_000  # while there is a problem: a removable drive or network share may come back


class Summary(Protocol):
    """Result of an inspection."""

    @property
    def has_problem(self) -> bool: ...


SummaryT = TypeVar("SummaryT", bound=Summary)


class PathMonitor(QObject, Generic[SummaryT]):
    """Inspects paths when they change, and again while the result is a problem, which it reports to the form."""

    changed = Signal()  # the result
    files_changed = Signal()  # another result of the same paths
    _inspected = Signal(object, object)  # paths, summary

    def __init__(
        self,
        parent: QObject,
        form: SetupForm,
        name: str,
        get_paths: Callable[[], list[str]],
        inspect: Callable[[list[str]], SummaryT],
        format_problem: Callable[[SummaryT], str],
    ) -> None:
        """`name`: field of the form. `inspect` runs in a thread."""
        super().__init__(parent)
        self._form, self._name = form, name
        self._get_paths, self._inspect, self._format_problem = get_paths, inspect, format_problem
        self._paths: list[str] = []  # that are inspected
        self._result: SummaryT | None = None
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._start_thread)
        self._inspected.connect(self._on_inspected)
        form.error_finders[name] = self._find_error

    @property
    def result(self) -> SummaryT | None:
        """Summary of the current paths; None: not known yet, or there are none."""
        return self._result if self._paths == self._get_paths() else None

    @property
    def is_pending(self) -> bool:
        """Whether there are paths that are not inspected yet."""
        return self.result is None and bool(self._get_paths())

    def start(self) -> None:
        self._update()
        self._form.changed.connect(self._update)

    def refresh(self) -> None:
        """Inspect the paths again."""
        if not self.is_pending:
            self._timer.start(0)

    def _update(self) -> None:
        if (paths := self._get_paths()) != self._paths:
            self._paths, self._result = paths, None
            self._timer.start(_DEBOUNCE_MS)

    def _start_thread(self) -> None:
        if self._paths:
            threading.Thread(target=self._run, args=(self._paths,), daemon=True).start()

    def _run(self, paths: list[str]) -> None:
        result = self._inspect(paths)
        with contextlib.suppress(RuntimeError):  # the window has been closed
            self._inspected.emit(paths, result)

    def _on_inspected(self, paths: list[str], result: SummaryT) -> None:
        if paths != self._paths:
            return
        before, error = self._result, self._find_error()
        self._result = result
        if before not in (None, result):
            self.files_changed.emit()
        self.changed.emit()
        if self._find_error() != error:
            self._form.on_error_changed(self._name)
        if result.has_problem:
            self._timer.start(_RETRY_MS)

    def _find_error(self) -> str:
        result = self.result
        return self._format_problem(result) if result is not None and result.has_problem else ""
