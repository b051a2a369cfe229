"""What is known of one run, and how it comes back from disk without the window standing still."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.state.computing import Computing
from app.state.history import EventLoader, History
from app.state.log_store import LogStore
from app.state.notes import Notes
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.run_dir import RunSummary

if TYPE_CHECKING:
    from app.state.metrics import MetricStore

_SLICE_S: Final = 0.012
_LIST_SLICE_S: Final = 0.008
_BREATH_MS: Final = 1  # between two slices: painting and input come first


class RunRecord:
    """The plots, log and samples of one run, how it computes, and what is to be said of it."""

    def __init__(self) -> None:
        self.log = LogStore()
        self.samples: list[protocol.Sample] = []
        self.ready: protocol.Ready | None = None  # what it trains on
        self.computing = Computing()
        self.notes = Notes()

    @cached_property
    def metrics(self) -> MetricStore:
        """Made when it is first asked for: it brings numpy, 0.1 s that the first paint need not wait for."""
        from app.state.metrics import MetricStore

        return MetricStore()

    def add(self, event: AnyEvent) -> None:
        self.metrics.add(event)
        self.notes.add(event, self.log.add(event))
        self.computing.add(event)
        if isinstance(event, protocol.Sample):
            self.samples.append(event)
        elif isinstance(event, protocol.Ready):
            self.ready = event


class RunOpener(QObject):
    """Reads the events of a run in slices. `opened` carries the whole record."""

    progressed = Signal(float)
    opened = Signal(Path, object)  # RunRecord

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = Path()
        self._record = RunRecord()
        self._loader: EventLoader | None = None
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)

    def open(self, path: Path) -> None:
        """Start reading; an opening that is under way is given up."""
        self.cancel()
        self._path, self._record, self._loader = path, RunRecord(), EventLoader(path)
        self._timer.start()

    def cancel(self) -> None:
        self._timer.stop()
        if self._loader is not None:
            self._loader.close()
        self._loader = None

    def _slice(self) -> None:
        loader = self._loader
        if loader is None:
            return
        for event in loader.read(_SLICE_S):
            self._record.add(event)
        if loader.finished:
            path, record = self._path, self._record
            self.cancel()
            self.opened.emit(path, record)
        else:
            self.progressed.emit(loader.fraction)


class RunLister(QObject):
    """Looks at the runs folder in slices: a thousand runs take seconds the first time."""

    listed = Signal()

    def __init__(self, history: History, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self._rest: Iterator[RunSummary] | None = None
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)

    def start(self) -> None:
        """Look again, unless it is looking already."""
        if self._rest is None:
            self._rest = self._history.refresh_in_slices()
            self._timer.start()
            self._slice()

    def stop(self) -> None:
        self._timer.stop()
        self._rest = None

    def _slice(self) -> None:
        deadline = time.perf_counter() + _LIST_SLICE_S
        while self._rest is not None and time.perf_counter() < deadline:
            if next(self._rest, None) is None:
                self.stop()
                self.listed.emit()
