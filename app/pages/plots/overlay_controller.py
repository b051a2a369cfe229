"""Overlaid runs: selection, colors and curves, loaded from disk one run after another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from app.core.history.run_list import RunList
from app.core.run_loader import RunLoader, RunRecord
from app.pages.plots.plot_specs import MAX_OVERLAYS, Overlay, overlay_color

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore


@dataclass(slots=True)
class _SelectedRun:
    color_index: int  # a run keeps its color when another is removed
    store: MetricStore | None = None
    is_current: bool = False  # False: to be loaded
    step: int = 0  # when it was loaded


class OverlayController(QObject):
    """Keeps the selection until it is removed or a run is deleted."""

    changed = Signal()  # the selection, or the loaded metrics

    def __init__(self, history: RunList, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self._selected: dict[Path, _SelectedRun] = {}
        self._loading: Path | None = None
        self._run_loader = RunLoader(self)
        self._run_loader.loaded.connect(self._on_loaded)

    @property
    def selected_colors(self) -> dict[Path, str]:
        """The runs in the order of selection, and their colors."""
        return {path: overlay_color(run.color_index) for path, run in self._selected.items()}

    def set_shown(self, paths: list[Path], *, on: bool) -> bool:
        """Add runs to the overlays or remove them. Returns False if the maximum is exceeded."""
        for path in paths:
            if not on:
                self._remove(path)
            elif path not in self._selected and len(self._selected) < MAX_OVERLAYS:
                used = {run.color_index for run in self._selected.values()}
                self._selected[path] = _SelectedRun(min(set(range(MAX_OVERLAYS)) - used))
        self._load_next()
        self.changed.emit()
        return not on or all(path in self._selected for path in paths)

    def visible_overlays(self, excluded: Path | None) -> list[Overlay]:
        """Return the loaded overlays without the displayed run."""
        return [
            Overlay(path.name, run.store, overlay_color(run.color_index))
            for path, run in self._selected.items()
            if path != excluded and run.store is not None
        ]

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """Handle a run folder that was renamed, or deleted (None)."""
        run = self._remove(old)
        if run is not None:
            if new is not None:
                self._selected[new] = run
            self._load_next()
            self.changed.emit()

    def close_run(self, path: Path) -> None:
        """Close the files of a run; `refresh` loads it again if it still exists."""
        if self._loading == path:
            self._run_loader.cancel()
            self._loading = None

    def refresh(self) -> None:
        """After a scan of the runs folder: remove deleted runs, reload runs that progressed."""
        steps = {run.path: run.step for run in self._history.runs}
        deleted = [path for path in self._selected if path not in steps]
        for path in deleted:
            self._remove(path)
        for path, run in self._selected.items():
            run.is_current = run.is_current and steps[path] == run.step
        self._load_next()
        if deleted:
            self.changed.emit()

    def shutdown(self) -> None:
        self._run_loader.cancel()

    # --- loading ----------------------------------------------------------------------------------------

    def _remove(self, path: Path) -> _SelectedRun | None:
        self.close_run(path)
        return self._selected.pop(path, None)

    def _load_next(self) -> None:
        """Start to load the next selected run."""
        if self._loading is None:
            self._loading = next((path for path, run in self._selected.items() if not run.is_current), None)
            if self._loading is not None:
                self._run_loader.load(self._loading, downsampled=True)

    def _on_loaded(self, path: Path, record: RunRecord) -> None:
        self._loading = None
        run, summary = self._selected.get(path), self._history.get(path)
        if run is not None:
            run.store, run.is_current, run.step = record.metrics, True, summary.step if summary is not None else 0
        self._load_next()
        self.changed.emit()
