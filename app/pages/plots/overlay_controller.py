"""Overlaid runs: selection, colours and curves, loaded from disk one run after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, Signal

from app.core.history.run_list import RunHistory
from app.core.run_loader import RunLoader, RunRecord
from app.pages.plots.overlays import MOST, Overlay, token

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore

_MIN_REREAD_INTERVAL_S: Final = 30.0  # between two loads of a run that is being trained
_REREAD_DURATION_FACTOR: Final = 20.0  # and at least this multiple of the load time


class OverlayController(QObject):
    """Keeps the selection until it is removed or a run is deleted."""

    changed = Signal()  # the selection, or the loaded metrics
    progressed = Signal(str, object)  # run name; fraction loaded, or None when idle

    def __init__(self, history: RunHistory, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self._colour_slots: dict[Path, int] = {}  # selected runs; a run keeps its colour when another is removed
        self._metric_stores: dict[Path, MetricStore] = {}
        self._read_state: dict[Path, tuple[int, float]] = {}  # step when it was loaded, and time of the next load
        self._reading_path: Path | None = None
        self._read_started_at = 0.0
        self._run_loader = RunLoader(self)
        self._run_loader.progressed.connect(lambda share: self.progressed.emit(self._reading_name(), share))
        self._run_loader.loaded.connect(self._on_opened)

    @property
    def selected_colours(self) -> dict[Path, str]:
        """The runs in the order of selection, and their colour tokens."""
        return {path: token(place) for path, place in self._colour_slots.items()}

    def set_shown(self, paths: list[Path], *, on: bool) -> bool:
        """Add runs to the overlays or remove them. Returns False if the maximum is exceeded."""
        for path in paths:
            if not on:
                self._remove(path)
            elif path not in self._colour_slots and len(self._colour_slots) < MOST:
                self._colour_slots[path] = min(set(range(MOST)) - set(self._colour_slots.values()))
        self._read_next()
        self.changed.emit()
        return not on or all(path in self._colour_slots for path in paths)

    def visible_overlays(self, excluded: Path | None) -> list[Overlay]:
        """The loaded overlays without the run on show."""
        there = ((path, self._metric_stores.get(path)) for path in self._colour_slots if path != excluded)
        return [
            Overlay(path.name, store, token(self._colour_slots[path])) for path, store in there if store is not None
        ]

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """Handle a run folder that was renamed, or deleted (None)."""
        if old in self._colour_slots:
            place, store, read = self._colour_slots[old], self._metric_stores.get(old), self._read_state.get(old)
            self._remove(old)
            if new is not None:
                self._colour_slots[new] = place
                if store is not None and read is not None:
                    self._metric_stores[new], self._read_state[new] = store, read
            self._read_next()
            self.changed.emit()

    def close_run(self, path: Path) -> None:
        """Close the files of a run; `refresh` loads it again if it still exists."""
        if self._reading_path == path:
            self._run_loader.cancel()
            self._reading_path = None
            self.progressed.emit("", None)

    def refresh(self) -> None:
        """After a scan of the runs folder: remove deleted runs, reload runs that progressed."""
        there = {run.path: run for run in self._history.runs}
        gone = [path for path in self._colour_slots if path not in there]
        for path in gone:
            self._remove(path)
        for path, (step, due) in list(self._read_state.items()):
            running = there[path].state == "running"
            if there[path].step != step and (not running or time.monotonic() > due):
                del self._read_state[path]
        self._read_next()
        if gone:
            self.changed.emit()

    def shutdown(self) -> None:
        self._run_loader.cancel()

    # --- loading ----------------------------------------------------------------------------------------

    def _remove(self, path: Path) -> None:
        self._colour_slots.pop(path, None)
        self._metric_stores.pop(path, None)
        self._read_state.pop(path, None)
        self.close_run(path)

    def _read_next(self) -> None:
        """Start to load the next selected run."""
        if self._reading_path is None:
            self._reading_path = next((path for path in self._colour_slots if path not in self._read_state), None)
            if self._reading_path is not None:
                self._read_started_at = time.monotonic()
                self.progressed.emit(self._reading_name(), 0.0)
                self._run_loader.load(self._reading_path, downsampled=True)

    def _reading_name(self) -> str:
        return self._reading_path.name if self._reading_path is not None else ""

    def _on_opened(self, path: Path, record: RunRecord) -> None:
        self._reading_path = None
        if path in self._colour_slots:
            summary = self._history.get(path)
            now = time.monotonic()
            due = now + max(_MIN_REREAD_INTERVAL_S, _REREAD_DURATION_FACTOR * (now - self._read_started_at))
            self._read_state[path] = (summary.step if summary is not None else 0, due)
            self._metric_stores[path] = record.metrics
        self._read_next()
        if self._reading_path is None:
            self.progressed.emit("", None)
        self.changed.emit()
