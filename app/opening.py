"""What is known of one run, and how it comes back from disk without the window standing still."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.state.computing import Computing
from app.state.log_store import LogStore
from app.state.notes import Notes
from app.state.runs.history import EventLoader, History, is_long
from app.state.training_time import TrainingTime
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir, RunSummary

if TYPE_CHECKING:
    from app.services.digesting import Digesting
    from app.state.measurements.bulk import Block
    from app.state.measurements.metrics import MetricStore

_SLICE_S: Final = 0.012
_LITTLE_S: Final = 0.003  # of events, before the time is looked at
_MAKING: Final = 0.8  # share of the progress of a long run until its arrays are made; reading them is quick
_LIST_SLICE_S: Final = 0.008
_BREATH_MS: Final = 1  # between two slices: painting and input come first

FIGURES: Final = frozenset({protocol.Step, protocol.Hardware, protocol.Progress})
"""Events that are no news: they only change figures."""


class RunRecord:
    """The plots, log and samples of one run, how it computes, and what is to be said of it."""

    def __init__(self) -> None:
        self.log = LogStore()
        self.samples: list[protocol.Sample] = []
        self.ready: protocol.Ready | None = None  # what it trains on
        self.computing = Computing()
        self.notes = Notes()
        self.trained = TrainingTime()

    @cached_property
    def metrics(self) -> MetricStore:
        """Made when it is first asked for: it brings numpy, 0.1 s that the first paint need not wait for."""
        from app.state.measurements.metrics import MetricStore

        return MetricStore()

    def add(self, event: AnyEvent) -> None:
        self.metrics.add(event)
        if type(event) in FIGURES:  # nearly all that ever comes: nothing of the below takes them
            return
        self.trained.add(event)
        self.notes.add(event, self.log.add(event))
        self.computing.add(event)
        if isinstance(event, protocol.Sample):
            self.samples.append(event)
        elif isinstance(event, protocol.Ready):
            self.ready = event

    def add_block(self, block: Block, limit: int | None = None) -> None:
        """Many events at once: as adding them one by one. `limit`: only so many measurements of each kind, or two
        between two other events; extremes are kept."""
        from app.state.measurements.bulk import thinned

        whole = max(1, block.rows.steps.shape[1])
        for rows, line in block.pieces():
            if limit is not None:
                rows = thinned(rows, max(2, limit * rows.steps.shape[1] // whole))
            self.metrics.add_rows(rows)
            with contextlib.suppress(protocol.ProtocolError):
                self.add(protocol.decode_event(line))


class RunOpener(QObject):
    """Reads the events of a run in slices. `opened` carries the whole record.

    Of a long run, processes make arrays first, which stay on disk for the next time; where that fails, its events are
    read one by one like those of any other.
    """

    progressed = Signal(float)
    opened = Signal(Path, object)  # RunRecord

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = Path()
        self._record = RunRecord()
        self._thinned = False
        self._steps: Iterator[float] | None = None  # of the work: the share that is done
        self._digesting: Digesting | None = None
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)

    def open(self, path: Path, *, thinned: bool = False) -> None:
        """Start reading; an opening that is under way is given up. `thinned`: only for its plots beside others."""
        self.cancel()
        self._path, self._record, self._thinned = path, RunRecord(), thinned
        owner = run_dir.read_owner(RunDir(path))
        if not is_long(path) or (owner is not None and owner.alive):  # arrays would be outdated before they are made
            self._begin(self._events())
            return
        from app.state.measurements import digest

        if digest.known(path):
            self._begin(self._arrays())
            return
        digest.forget(path)
        self._digest(digest.wanted(path))

    def cancel(self) -> None:
        self._timer.stop()
        self._steps = None
        if self._digesting is not None:
            self._digesting.cancel()

    def _begin(self, steps: Iterator[float]) -> None:
        self._steps = steps
        self._timer.start()

    def _digest(self, parts: list[list[str]]) -> None:
        from app.services.digesting import Digesting

        if self._digesting is None:
            self._digesting = Digesting(self)
            self._digesting.progressed.connect(lambda share: self.progressed.emit(_MAKING * share))
            self._digesting.finished.connect(lambda well: self._begin(self._arrays() if well else self._events()))
        self._digesting.start(parts)

    def _events(self) -> Iterator[float]:
        loader = EventLoader(self._path)
        try:
            while not loader.finished:
                for event in loader.read(_LITTLE_S):
                    self._record.add(event)
                yield loader.fraction
        finally:
            loader.close()
        if self._thinned:
            yield from self._thinning()

    def _arrays(self) -> Iterator[float]:
        from app.state.measurements import digest
        from app.state.measurements.thinning import ROWS

        paths = digest.known(self._path)
        limit, seen = None, 0
        try:
            for reached, block in digest.blocks(paths):
                if self._thinned and limit is None:  # by what share of the whole the first block is
                    limit = max(2, int(ROWS * reached))
                self._record.add_block(block, limit)
                seen += block.rows.steps.shape[1]
                yield _MAKING + (1.0 - _MAKING) * reached
        except digest.DamagedError:
            digest.forget(self._path)
            paths = []
        if not paths:
            self._record = RunRecord()
            yield from self._events()
        elif self._thinned:
            self._record.metrics.made_of(max(1, round(seen / ROWS)))

    def _thinning(self) -> Iterator[float]:
        """Of a run that was read event by event."""
        work = self._record.metrics.thinning()
        while True:
            try:
                next(work)
            except StopIteration as end:
                self._record.metrics = end.value
                return
            yield 1.0

    def _slice(self) -> None:
        deadline = time.perf_counter() + _SLICE_S
        share: float | None = 0.0
        while self._steps is not None and time.perf_counter() < deadline:
            share = next(self._steps, None)
            if share is None:
                path, record = self._path, self._record
                self.cancel()
                self.opened.emit(path, record)
                return
        self.progressed.emit(share)


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
