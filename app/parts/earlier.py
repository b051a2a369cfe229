"""An earlier run on show in place of the window's own: read from disk in slices, perhaps to go on with it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.opening import RunOpener, RunRecord
from app.state.runs.history import History
from app.views.viewing import Viewing
from trainer_core.runs.run_dir import RunSummary


class EarlierRun(QObject):
    """At most one. `viewing` is what the strip above the pages shows, `record` what the pages do."""

    opened = Signal()  # all of it is there
    resume_asked = Signal()  # and it was opened to be gone on with

    def __init__(self, history: History, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self.record: RunRecord | None = None
        self.viewing: Viewing | None = None
        self._resume_when_opened = False
        self._opener = RunOpener(self)
        self._opener.progressed.connect(self._on_progress)
        self._opener.opened.connect(self._on_opened)

    def open(self, summary: RunSummary, *, resume: bool) -> None:
        """Begin to read it; `resume`: go on with it as soon as it is there."""
        self._resume_when_opened = resume
        self.record, self.viewing = RunRecord(), Viewing(summary, 0.0)
        self._opener.open(summary.path)

    def forget(self) -> None:
        self._opener.cancel()
        self.record, self.viewing, self._resume_when_opened = None, None, False

    def allow_resume(self, allowed: bool) -> None:
        """Whether this window could go on with it now."""
        if self.viewing is not None:
            self.viewing = Viewing(self.viewing.summary, self.viewing.loaded, allowed)

    def _on_progress(self, fraction: float) -> None:
        if self.viewing is not None:
            self.viewing = Viewing(self.viewing.summary, min(fraction, 0.99))  # 1.0 only when all is shown

    def _on_opened(self, path: Path, record: RunRecord) -> None:
        summary = self._history.get(path)
        if summary is None or self.viewing is None:  # its folder is gone meanwhile
            self.forget()
            self.opened.emit()
            return
        self.record, self.viewing = record, Viewing(summary, 1.0)
        if self._resume_when_opened:
            self.resume_asked.emit()
        self.opened.emit()
