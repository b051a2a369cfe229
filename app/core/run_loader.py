"""The record of one run, and loading it from disk without blocking the event loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.core.execution_info import ExecutionInfo
from app.core.history.run_list import EventReader, RunHistory
from app.core.log_store import LogStore
from app.core.run_advice import ActiveAdvice
from app.core.training_time import TrainingTime
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import RunSummary

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore

_LOAD_SLICE_S: Final = 0.012
_LIST_SLICE_S: Final = 0.008
_YIELD_MS: Final = 1  # between two slices, for painting and input

METRIC_EVENTS: Final = frozenset({protocol.Step, protocol.Hardware, protocol.Progress})
"""Events that only change figures."""


class RunRecord:
    """Metrics, log, samples, execution info and advice of one run."""

    def __init__(self) -> None:
        self.log = LogStore()
        self.samples: list[protocol.Sample] = []
        self.ready: protocol.Ready | None = None  # summary of the training data
        self.execution = ExecutionInfo()
        self.advice = ActiveAdvice()
        self.training_time = TrainingTime()

    @cached_property
    def metrics(self) -> MetricStore:
        """Created on first use: the import of numpy takes 0.1 s, which would delay the first paint."""
        from app.core.metrics.metric_store import MetricStore

        return MetricStore()

    def add(self, event: AnyEvent) -> None:
        self.metrics.add(event)
        if type(event) in METRIC_EVENTS:  # most events; the rest does not use them
            return
        self.training_time.add(event)
        self.advice.add(event, self.log.add(event))
        self.execution.add(event)
        if isinstance(event, protocol.Sample):
            self.samples.append(event)
        elif isinstance(event, protocol.Ready):
            self.ready = event


class RunLoader(QObject):
    """Reads the events of a run in slices of 12 ms: about 100,000 events a second."""

    progressed = Signal(float)  # fraction read, 0..1
    loaded = Signal(Path, object)  # RunRecord

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = Path()
        self._record = RunRecord()
        self._work: Iterator[float] = iter(())
        self._timer = QTimer(self, interval=_YIELD_MS)
        self._timer.timeout.connect(self._run_slice)

    def load(self, path: Path, *, downsampled: bool = False) -> None:
        """Start loading and cancel the previous load. `downsampled`: keep only what an overlay needs."""
        self.cancel()
        self._path, self._record = path, RunRecord()
        self._work = self._load(EventReader(path), downsampled=downsampled)
        self._timer.start()

    def cancel(self) -> None:
        self._timer.stop()
        self._work = iter(())

    def _load(self, reader: EventReader, *, downsampled: bool) -> Iterator[float]:
        """Yields the fraction read after each slice of a few ms."""
        with contextlib.closing(reader):
            while not reader.finished:
                for event in reader.read(budget_s=0.0):
                    self._record.add(event)
                yield reader.fraction
        if downsampled:
            for _ in self._record.metrics.iter_downsample():
                yield 1.0

    def _run_slice(self) -> None:
        deadline = time.perf_counter() + _LOAD_SLICE_S
        fraction: float | None = 0.0
        while fraction is not None and time.perf_counter() < deadline:
            fraction = next(self._work, None)
        if fraction is not None:
            self.progressed.emit(fraction)
            return
        self.cancel()
        self.loaded.emit(self._path, self._record)


class RunLister(QObject):
    """Scans the runs folder in slices: a thousand runs take seconds the first time."""

    listed = Signal()

    def __init__(self, history: RunHistory, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self._pending: Iterator[RunSummary] | None = None
        self._timer = QTimer(self, interval=_YIELD_MS)
        self._timer.timeout.connect(self._run_slice)

    def start(self) -> None:
        """Look again, unless it is looking already."""
        if self._pending is None:
            self._pending = self._history.iter_refresh()
            self._timer.start()
            self._run_slice()

    def stop(self) -> None:
        self._timer.stop()
        self._pending = None

    def _run_slice(self) -> None:
        deadline = time.perf_counter() + _LIST_SLICE_S
        while self._pending is not None and time.perf_counter() < deadline:
            if next(self._pending, None) is None:
                self.stop()
                self.listed.emit()
