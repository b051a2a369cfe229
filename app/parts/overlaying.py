"""Other runs laid over the plots: which, in which colours, and their curves, read from disk one run after the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, Signal

from app.opening import RunOpener, RunRecord
from app.state.runs.history import History
from app.views.plots.overlays import MOST, Overlay, token

if TYPE_CHECKING:
    from app.state.measurements.metrics import MetricStore

_AGAIN_S: Final = 30.0  # at least, between two readings of a run that is being trained
_SPARING: Final = 20.0  # and so many times what one takes: a long run is read rarely


class Overlays(QObject):
    """The choice lasts until it is taken back or a run is gone."""

    changed = Signal()  # of the choice, or of what has been read
    progressed = Signal(str, object)  # a run's name; the share read, or None: nothing is being read

    def __init__(self, history: History, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self._places: dict[Path, int] = {}  # chosen runs; a run keeps its colour when another one goes
        self._stores: dict[Path, MetricStore] = {}
        self._read: dict[Path, tuple[int, float]] = {}  # step of the run when it was read, and when to read it again
        self._reading: Path | None = None
        self._began = 0.0  # that reading
        self._opener = RunOpener(self)
        self._opener.progressed.connect(lambda share: self.progressed.emit(self._name(), share))
        self._opener.opened.connect(self._on_opened)

    @property
    def chosen(self) -> dict[Path, str]:
        """The runs in the order of their choice, and their colour tokens."""
        return {path: token(place) for path, place in self._places.items()}

    def show(self, paths: list[Path], *, on: bool) -> bool:
        """Lay runs over the plots, or no longer. False: not all of them, there is no room for more."""
        for path in paths:
            if not on:
                self._drop(path)
            elif path not in self._places and len(self._places) < MOST:
                self._places[path] = min(set(range(MOST)) - set(self._places.values()))
        self._read_next()
        self.changed.emit()
        return not on or all(path in self._places for path in paths)

    def of_plots(self, but: Path | None) -> list[Overlay]:
        """What has been read; without the run that the plots show anyway."""
        there = ((path, self._stores.get(path)) for path in self._places if path != but)
        return [Overlay(path.name, store, token(self._places[path])) for path, store in there if store is not None]

    def moved(self, old: Path, new: Path | None) -> None:
        """A run has another folder now; None: it is gone."""
        if old in self._places:
            place, store, read = self._places[old], self._stores.get(old), self._read.get(old)
            self._drop(old)
            if new is not None:
                self._places[new] = place
                if store is not None and read is not None:
                    self._stores[new], self._read[new] = store, read
            self._read_next()
            self.changed.emit()

    def let_go(self, path: Path) -> None:
        """Close the files of a run; `look` reads it again, if it is still there."""
        if self._reading == path:
            self._opener.cancel()
            self._reading = None
            self.progressed.emit("", None)

    def look(self) -> None:
        """The runs folder was looked at: drop what is gone, read again what went on."""
        there = {run.path: run for run in self._history.runs}
        gone = [path for path in self._places if path not in there]
        for path in gone:
            self._drop(path)
        for path, (step, due) in list(self._read.items()):
            running = there[path].state == "running"
            if there[path].step != step and (not running or time.monotonic() > due):
                del self._read[path]
        self._read_next()
        if gone:
            self.changed.emit()

    def leave(self) -> None:
        self._opener.cancel()

    # --- reading ----------------------------------------------------------------------------------------

    def _drop(self, path: Path) -> None:
        self._places.pop(path, None)
        self._stores.pop(path, None)
        self._read.pop(path, None)
        self.let_go(path)

    def _read_next(self) -> None:
        """Begin with the next one that is chosen and not read."""
        if self._reading is None:
            self._reading = next((path for path in self._places if path not in self._read), None)
            if self._reading is not None:
                self._began = time.monotonic()
                self.progressed.emit(self._name(), 0.0)
                self._opener.open(self._reading, thinned=True)

    def _name(self) -> str:
        return self._reading.name if self._reading is not None else ""

    def _on_opened(self, path: Path, record: RunRecord) -> None:
        self._reading = None
        if path in self._places:
            summary = self._history.get(path)
            now = time.monotonic()
            due = now + max(_AGAIN_S, _SPARING * (now - self._began))
            self._read[path] = (summary.step if summary is not None else 0, due)
            self._stores[path] = record.metrics
        self._read_next()
        if self._reading is None:
            self.progressed.emit("", None)
        self.changed.emit()
