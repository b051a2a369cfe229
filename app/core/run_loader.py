"""The record of one run, and loading it from disk without blocking the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, Signal

from app.core.execution_info import ExecutionInfo
from app.core.history.run_list import read_events
from app.core.idle_task import IdleTask
from app.core.log_store import LogStore
from app.core.run_advice import ActiveAdvice
from app.core.training_time import TrainingTime
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore

METRIC_EVENTS: Final = frozenset({protocol.Step, protocol.Hardware, protocol.Progress})
"""Events that only change figures."""
_MAX_ROLLOUTS: Final = 20  # kept: displaying 20 of 64 answers takes 0.04 s; events.jsonl has all


class RunRecord:
    """Metrics, log, samples, execution info and advice of one run."""

    def __init__(self) -> None:
        self.log = LogStore()
        self.samples: list[protocol.Sample] = []
        self.rollouts: deque[protocol.Rollouts] = deque(maxlen=_MAX_ROLLOUTS)
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
        if isinstance(event, protocol.Hello):
            self._remove_repeated(-1 if event.resumed_from_step is None else event.resumed_from_step)
        elif isinstance(event, protocol.Sample):
            self.samples.append(event)
        elif isinstance(event, protocol.Rollouts):
            self.rollouts.append(event)
        elif isinstance(event, protocol.Ready):
            self.ready = event

    def _remove_repeated(self, step: int) -> None:
        """Remove what a process that resumes from `step` repeats. The views compare the lists, so replace them."""
        self.samples = [sample for sample in self.samples if sample.step <= step]
        self.rollouts = deque((event for event in self.rollouts if event.step <= step), maxlen=_MAX_ROLLOUTS)


class RunLoader(QObject):
    """Reads the events of a run in slices: about 100,000 events a second."""

    progressed = Signal(float)  # fraction read, 0..1
    loaded = Signal(Path, object)  # RunRecord

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = Path()
        self._record = RunRecord()
        self._task = IdleTask(self)
        self._task.finished.connect(lambda: self.loaded.emit(self._path, self._record))

    def load(self, path: Path, *, downsampled: bool = False) -> None:
        """Start loading and cancel the previous load. `downsampled`: keep only what an overlay needs."""
        self._path, self._record = path, RunRecord()
        self._task.start(self._load(path, downsampled=downsampled))

    def cancel(self) -> None:
        self._task.stop()

    def _load(self, path: Path, *, downsampled: bool) -> Iterator[None]:
        for events, fraction in read_events(path):
            for event in events:
                self._record.add(event)
            self.progressed.emit(fraction)
            yield
        if downsampled:
            yield from self._record.metrics.downsample_in_slices()
