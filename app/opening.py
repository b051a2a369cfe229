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

    Of a long run, processes make arrays, which stay on disk for the next time; they are read while others are still
    being made. Where that fails, its events are read one by one like those of any other.
    """

    progressed = Signal(float)
    opened = Signal(Path, object)  # RunRecord

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = Path()
        self._record = RunRecord()
        self._thinned = False
        self._steps: Iterator[float | None] | None = None  # the share of the work that is done; None: it has to wait
        self._made, self._read = 1.0, 0.0  # shares of the arrays
        self._digesting: Digesting | None = None
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)

    def open(self, path: Path, *, thinned: bool = False) -> None:
        """Start reading; an opening that is under way is given up. `thinned`: only for its plots beside others."""
        self.cancel()
        self._path, self._thinned = path, thinned
        self._made, self._read = 1.0, 0.0
        owner = run_dir.read_owner(RunDir(path))
        if not is_long(path) or (owner is not None and owner.alive):  # arrays would be outdated before they are made
            self._begin(self._events())
            return
        from app.state.measurements import digest

        if parts := digest.known(path):
            self._begin(self._arrays(parts))
            return
        digest.forget(path)
        parts, commands = digest.wanted(path)
        self._made = 0.0
        self._begin(self._arrays(parts))
        self._digest(commands)

    def cancel(self) -> None:
        self._timer.stop()
        self._steps = None
        if self._digesting is not None:
            self._digesting.cancel()

    def _begin(self, steps: Iterator[float | None]) -> None:
        self._record = RunRecord()
        self._steps = steps
        self._timer.start()

    # --- arrays ----------------------------------------------------------------------------------------------

    def _digest(self, commands: list[list[str]]) -> None:
        from app.services.digesting import Digesting

        if self._digesting is None:
            self._digesting = Digesting(self)
            self._digesting.progressed.connect(self._on_made)
            self._digesting.finished.connect(self._on_digested)
        self._digesting.start(commands)

    def _on_made(self, share: float) -> None:
        """The next part may be there. Not before `_on_digested` they all are."""
        self._made = min(share, 0.99)
        if self._steps is not None:
            self.progressed.emit(self._share())
            self._timer.start()

    def _on_digested(self, well: bool) -> None:
        self._made = 1.0
        if well:
            self._timer.start()
        else:
            self._begin(self._events())

    def _share(self) -> float:
        return _MAKING * self._made + (1.0 - _MAKING) * self._read

    def _arrays(self, parts: list[Path]) -> Iterator[float | None]:
        from app.state.measurements import digest
        from app.state.measurements.thinning import ROWS

        limit, seen = None, 0
        try:
            for place, part in enumerate(parts):
                while self._made < 1.0 and not digest.is_made(self._path, part):
                    yield None
                for reached, block in digest.blocks([part]):
                    self._read = (place + reached) / len(parts)
                    if self._thinned and limit is None:  # by what share of the whole the first block is
                        limit = max(2, int(ROWS * self._read))
                    self._record.add_block(block, limit)
                    seen += block.rows.steps.shape[1]
                    yield self._share()
            whole = bool(digest.known(self._path))  # else its events have grown meanwhile
        except digest.DamagedError:
            digest.forget(self._path)
            whole = False
        if not whole:
            self._record = RunRecord()
            yield from self._events()
        elif self._thinned:
            self._record.metrics.made_of(max(1, round(seen / ROWS)))

    # --- events ----------------------------------------------------------------------------------------------

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
        deadline, steps = time.perf_counter() + _SLICE_S, self._steps
        share: float | None = None
        while steps is not None and time.perf_counter() < deadline:
            try:
                share = next(steps)
            except StopIteration:
                if share is None:
                    path, record = self._path, self._record
                    self.cancel()
                    self.opened.emit(path, record)
                    return
                self._steps = iter(())  # it is shown in a turn of its own
                break
            if share is None:
                self._timer.stop()  # until `_on_made`
                return
        if share is not None:
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
