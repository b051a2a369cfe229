"""Monitors of the files that the form names. They read file names and sizes in threads: network drives are slow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.core.source_summary import SourceSummary, summarize_sources
from app.core.tokenizer_path import has_tokenizer
from app.pages.setup import texts
from app.pages.setup.form import SetupForm
from app.pages.setup.source_lists import SourceEditor

_DEBOUNCE_MS: Final = 200
_RETRY_MS: Final = 3_000  # for missing files: a removable drive or network share may come back


class BackgroundTask(QObject):
    """Calls `function(argument, should_continue)` in a thread. `finished` is emitted for the latest call only."""

    finished = Signal(object, object)  # argument, result
    _returned = Signal(object, object)

    def __init__(self, function: Callable[[Any, Callable[[], bool]], Any], parent: QObject) -> None:
        super().__init__(parent)
        self._function, self._latest = function, object()
        self._returned.connect(self._on_returned)

    def start(self, argument: object) -> None:
        self._latest = argument
        threading.Thread(target=self._run, args=(argument,), daemon=True).start()

    def _run(self, argument: object) -> None:
        result = self._function(argument, lambda: self._latest is argument)
        with contextlib.suppress(RuntimeError):  # the window has been closed
            self._returned.emit(argument, result)

    def _on_returned(self, argument: object, result: object) -> None:
        if argument == self._latest:
            self.finished.emit(argument, result)


class SourceMonitor(QObject):
    """Summarizes the sources of an editor when they change, and again while some are missing."""

    changed = Signal()

    def __init__(self, paths: Callable[[], list[str]], editor: SourceEditor, parent: QObject) -> None:
        super().__init__(parent)
        self._get_paths, self._editor = paths, editor
        self._paths: list[str] = []
        self.summary: SourceSummary | None = None  # None: not known yet, or there are no paths
        self._task = BackgroundTask(lambda paths, wanted: summarize_sources(paths, should_continue=wanted), self)
        self._task.finished.connect(self._on_summarized)
        self._retry_timer = QTimer(self, interval=_RETRY_MS, singleShot=True)
        self._retry_timer.timeout.connect(self.refresh)

    def _own_paths(self) -> list[str]:
        return [path for path in self._get_paths() if not path.startswith("builtin:")]

    @property
    def is_pending(self) -> bool:
        """Whether there are paths that are not summarized yet."""
        return self.summary is None and bool(self._own_paths())

    @property
    def missing_data_text(self) -> str:
        """Which sources do not exist; empty if all do, or if that is not known yet."""
        if self.summary is None or not self.summary.has_problem or not self._own_paths():
            return ""
        return texts.format_source_summary(self.summary, self._get_paths())[0]

    def on_paths_changed(self) -> None:
        if (paths := self._get_paths()) != self._paths:
            self._paths, self.summary = list(paths), None
        self.refresh()

    def refresh(self) -> None:
        if paths := self._own_paths():
            self._task.start(paths)

    def _on_summarized(self, paths: list[str], summary: SourceSummary) -> None:
        if paths != self._own_paths():
            return
        self.summary = summary
        self._editor.set_summary(summary)
        self.changed.emit()
        if summary.has_problem:
            self._retry_timer.start()


class TokenizerMonitor(QObject):
    """Reports a missing tokenizer to the form."""

    def __init__(self, form: SetupForm, parent: QObject) -> None:
        super().__init__(parent)
        self._form = form
        self._path = ""
        self._task = BackgroundTask(lambda path, _wanted: has_tokenizer(path), self)
        self._task.finished.connect(self._on_checked)
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(lambda: self._task.start(self._path))
        form.changed.connect(self.refresh)

    def refresh(self) -> None:
        """Check the path if it has changed."""
        path = self._form.text("tokenizer").strip()
        if path != self._path:
            self._path = path
            self._timer.start(_DEBOUNCE_MS)

    def _on_checked(self, path: str, exists: bool) -> None:
        if path == self._path:
            exists = exists or not path
            self._form.set_missing_tokenizer("" if exists else path)
            if not exists:
                self._timer.start(_RETRY_MS)
