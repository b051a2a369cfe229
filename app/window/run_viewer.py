"""Displays an earlier run in place of the window's own, and offers to resume an interrupted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.active_run import ActiveRun
from app.core.history.run_list import RunList
from app.core.installation import installation
from app.core.run_loader import RunLoader, RunRecord
from app.core.settings import Settings
from app.texts import tr
from app.widgets import formatting
from app.window.main_window import MainWindow
from trainer_core.messages import TraindeckError
from trainer_core.runs.run_dir import RunSummary


@dataclass(slots=True)
class ViewedRun:
    """An earlier run on display."""

    summary: RunSummary
    loaded_fraction: float = 0.0  # of its events


class RunViewer(QObject):
    """Loads one earlier run from disk, in slices. `viewed_run` and `record` are None while none is open."""

    opened = Signal()  # all events are loaded
    changed = Signal()

    def __init__(
        self,
        window: MainWindow,
        history: RunList,
        active_run: ActiveRun,
        settings: Settings,
        show_error: Callable[[TraindeckError], None],
    ) -> None:
        super().__init__(window)
        self._window, self._history, self._active_run, self._show_error = window, history, active_run, show_error
        self._settings = settings
        self.record: RunRecord | None = None
        self.viewed_run: ViewedRun | None = None
        self._resume_when_opened = False
        self._offered: RunSummary | None = None  # an interrupted run
        self._offer_done = False
        self._run_loader = RunLoader(self)
        self._run_loader.progressed.connect(self._on_progress)
        self._run_loader.loaded.connect(self._on_loaded)
        self._resume_button = window.viewed_run_bar.buttons["resumeViewed"]
        self._resume_button.clicked.connect(self._resume)
        window.viewed_run_bar.buttons["backToCurrent"].clicked.connect(self.show_active_run)
        window.interrupted_run_bar.buttons["resumeInterrupted"].clicked.connect(self._resume_offered)
        window.interrupted_run_bar.buttons["dismissInterrupted"].clicked.connect(self._dismiss_offered)

    def resume(self, path: Path) -> None:
        """Display a run, and resume it as soon as it is loaded."""
        self.open(path)
        is_opened = self.viewed_run is not None and self.viewed_run.summary.path == path
        self._resume_when_opened = is_opened and self._active_run.can_start

    def open(self, path: Path) -> None:
        """Display a run."""
        summary = self._history.get(path)
        if summary is None:
            self._show_error(TraindeckError("run.not_found", path=str(path)))
            return
        machine = self._active_run.machine
        if machine.is_active and Path(machine.run_dir) == summary.path:
            self.show_active_run()
        else:
            self._resume_when_opened = False
            self.record, self.viewed_run = RunRecord(), ViewedRun(summary)
            self._run_loader.load(summary.path)
        self._window.show_page("plots")
        self.changed.emit()

    def close(self) -> None:
        self._run_loader.cancel()
        self.record, self.viewed_run, self._resume_when_opened = None, None, False

    def show_active_run(self) -> None:
        """Return to the window's own run."""
        self.close()
        self._window.plots.show_all()
        self.changed.emit()

    def on_folder_closing(self, path: Path) -> None:
        """Release the files of a run whose folder is about to be renamed or deleted."""
        if self.viewed_run is not None and self.viewed_run.summary.path == path:
            self.show_active_run()

    def refresh(self) -> None:
        self._window.viewed_run_bar.set_message(self._format_message())
        self._window.interrupted_run_bar.set_message(_format_offer(self._offered) if installation.is_complete else "")
        viewed = self.viewed_run
        if viewed is not None:
            self._resume_button.setVisible(viewed.summary.resumable)
            self._resume_button.setEnabled(viewed.loaded_fraction == 1.0 and self._active_run.can_start)
            self._resume_button.setToolTip(installation.missing_reason("all"))

    def _format_message(self) -> str:
        if self.viewed_run is None:
            return ""
        run, fraction = self.viewed_run.summary, self.viewed_run.loaded_fraction
        if fraction < 1.0:
            return tr("window.opening_run", name=run.name, share=f"{fraction:.0%}")
        state, step = formatting.format_stored_run_state(run.state), formatting.format_count(run.step)
        return tr("window.viewing_run", name=run.name, state=state, step=step)

    def _on_progress(self, fraction: float) -> None:
        if self.viewed_run is not None:
            self.viewed_run.loaded_fraction = min(fraction, 0.99)  # 1.0: displayed

    def _on_loaded(self, path: Path, record: RunRecord) -> None:
        summary = self._history.get(path)
        if summary is None or self.viewed_run is None:  # the folder was deleted
            self.close()
        else:
            self.record, self.viewed_run = record, ViewedRun(summary, 1.0)
            if self._resume_when_opened:
                self._resume()
        self.opened.emit()
        self._window.plots.show_all()
        self.changed.emit()

    def _resume(self) -> None:
        viewed, record = self.viewed_run, self.record
        if viewed is not None and record is not None and self._active_run.can_start:
            run = viewed.summary
            self._active_run.resume_from_disk(run.path, record, has_checkpoint=run.checkpoints > 0)

    # --- interrupted runs --------------------------------------------------------------------------------

    def offer_interrupted(self) -> None:
        """Offer the newest interrupted run that was not dismissed. Call this when the runs are listed; only the first
        call has an effect."""
        if not self._offer_done:
            self._offer_done = True
            known = self._settings.dismissed
            runs = (run for run in self._history.runs if run.state == "interrupted" and run.resumable)
            self._offered = next((run for run in runs if str(run.path) not in known), None)
            self.refresh()

    def hide_offer(self) -> None:
        self._offered, self._offer_done = None, True
        self.refresh()

    def _dismiss_offered(self) -> None:
        """Offer none of the interrupted runs again. They stay on the runs page."""
        self._settings.dismissed = [str(run.path) for run in self._history.runs if run.state == "interrupted"]
        self.hide_offer()

    def _resume_offered(self) -> None:
        run = self._offered
        self.hide_offer()
        if run is not None:
            self.resume(run.path)


def _format_offer(run: RunSummary | None) -> str:
    if run is None:
        return ""
    step, when = formatting.format_count(run.step), formatting.format_timestamp(run.started + run.seconds)
    return tr("window.run_interrupted", name=run.name, step=step, when=when)
