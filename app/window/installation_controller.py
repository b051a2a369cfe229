"""Completes the environment while the window is open: progress on a card, and a run that starts at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.core.active_run import ActiveRun
from app.core.installation import installation
from app.pages.queue.queue_controller import QueueController
from app.services.gpu_probe import GpuProbe
from app.services.setup_job import SetupJob
from app.texts import tr
from app.window.installation_card import InstallationCard
from app.window.main_window import MainWindow
from trainer_core.runs.run_dir import RunSummary
from trainer_core.system.doctor.finding import SETUP_COMMAND

_CLOSE_DELAY_MS: Final = 8000  # after the end


class InstallationController(QObject):
    """Runs setup from `start` until the environment is complete, or offers an update of it."""

    changed = Signal()  # what is installed, or whether a start is queued
    restart_requested = Signal()

    def __init__(self, window: MainWindow, active_run: ActiveRun, queue: QueueController, probe: GpuProbe) -> None:
        super().__init__(window)
        self._window, self._active_run, self._queue, self._probe = window, active_run, queue, probe
        self.job = SetupJob(self)
        self.card = InstallationCard(self.job)
        self._queued_id = ""  # of the run that Start has queued
        window.add_card(self.card)
        self.card.take_back_clicked.connect(self._take_back)
        self.card.restart_clicked.connect(self.restart_requested)
        self.job.changed.connect(self._on_job_changed)
        installation.changed.connect(self._on_installed)
        queue.changed.connect(self._on_queue_changed)
        active_run.state_changed.connect(self._update_restart)

    def start(self, update_reason: str) -> None:
        """`update_reason`: why the packages of a complete environment should be updated."""
        if installation.is_complete:
            self.job.offer(update_reason)
        else:
            self.job.start()

    def on_runs_listed(self, runs: Iterable[RunSummary]) -> None:
        """An update waits for the run that the launcher has found, while it can be resumed."""
        name = os.environ.get("TRAINDECK_UNFINISHED_RUN", "")
        waits = any(run.name == name and run.resumable for run in runs)
        self.card.set_update_blocked(tr("launcher.update_waits", name=name, command=SETUP_COMMAND) if waits else "")

    def shutdown(self) -> None:
        """Pause. The next start of the window continues."""
        self.job.shutdown()

    # --- a start during the setup -----------------------------------------------------------------------

    @property
    def start_delay(self) -> str:
        """Why Start cannot be clicked while setup has not finished; empty: it can."""
        if self._is_start_queued:
            return tr("installation.start_queued")
        return "" if self._queue.is_open else installation.missing_reason("all")

    @property
    def _is_start_queued(self) -> bool:
        return any(item.id == self._queued_id for item in self._queue.queue.waiting)

    def queue_start(self) -> bool:
        """Queue the run of the form if setup has not finished. Returns whether it has to wait."""
        if installation.is_complete:
            return False
        if not self._is_start_queued:
            self._queued_id = self._queue.add_first()
            self._on_queue_changed()
        return True

    def _take_back(self) -> None:
        self._queue.apply(lambda: self._queue.queue.remove({self._queued_id}))

    def _on_queue_changed(self) -> None:
        self.card.show_queued(self._is_start_queued)
        self.changed.emit()

    # --- end ----------------------------------------------------------------------------------------------

    def _on_installed(self) -> None:
        """Read again what depends on the packages."""
        self._window.setup.model.monitor.refresh()
        self._probe.start()  # reads the version of torch
        self.changed.emit()

    def _on_job_changed(self) -> None:
        if self.job.state == "finished" and not self.job.needs_restart:
            QTimer.singleShot(_CLOSE_DELAY_MS, self.card, self.card.hide)
        self._update_restart()

    def _update_restart(self) -> None:
        self.card.set_restart_blocked(tr("installation.run_active") if self._active_run.machine.is_active else "")
