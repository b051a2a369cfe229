"""Starts queued runs one after another and keeps the queue page up to date."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.core import command_line
from app.core.active_run import ActiveRun
from app.core.history.run_list import RunHistory
from app.core.queue import (
    AfterFailure,
    QueueItem,
    QueueItemState,
    RunQueue,
    item_state,
    new_item,
    record_outcome,
    update_from_disk,
)
from app.core.run_state import RunState
from app.pages.setup.form import SetupForm
from app.services.trainer_process import ProcessOutcome
from app.texts import tr
from trainer_core import config, presets, protocol
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent
from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import new_run_path, unique_name

if TYPE_CHECKING:
    from app.core.sweep import PlannedRun
    from app.pages.queue.page import QueuePage

HoldReason = Literal["", "opened", "paused", "stopped", "failed"]
"""Why no queued run starts automatically; empty: the next one starts when no run is active."""
_MAX_COMPARED_RUNS: Final = 10  # limit of the plots


class QueueController(QObject):
    """Evaluates the end of every run of this window: a run that the user stops also pauses the queue."""

    changed = Signal()  # waiting items, or whether they start
    message_ready = Signal(str)  # result of a request to add runs, for when the page is not visible
    held_after_failure = Signal()  # a run failed, which has paused the queue
    emptied = Signal()  # all items have ended
    open_requested = Signal(Path)
    resume_requested = Signal(Path)
    compare_requested = Signal(object)  # list[Path]

    def __init__(
        self, form: SetupForm, active_run: ActiveRun, history: RunHistory, show_error: Callable[[TraindeckError], None]
    ) -> None:
        super().__init__(active_run)
        self._form, self._active_run, self._history, self._show_error = form, active_run, history, show_error
        self.queue = RunQueue()
        self.hold_reason: HoldReason = ""
        self._owner_pid: int | None = None  # process id of another window that has opened the queue
        self._open_error: TraindeckError | None = None
        self.is_open = False  # this window has opened the queue
        self._outcome_pending = False  # a run has started whose outcome is not recorded
        self._has_ended_items = False  # since the queue was last empty
        self._page: QueuePage | None = None
        active_run.state_changed.connect(self._on_run_changed)
        active_run.event_received.connect(self._on_event)
        active_run.ended.connect(self._on_run_ended)
        form.changed.connect(self.refresh)

    def open(self) -> None:
        """Read the queue, unless another window has opened it. No item starts automatically."""
        if self.is_open:
            return
        self._owner_pid = self._open_error = None
        try:
            self.queue.open()
        except file_locks.LockHeldError as used:
            self._owner_pid = used.pid
        except TraindeckError as error:
            self._open_error = error
        else:
            self.is_open = True
            for item in self.queue.items:
                if item.state == "interrupted":
                    update_from_disk(item, self._history.get(Path(item.run_dir)) if item.run_dir else None)
            self.hold_reason = "opened" if self.queue.waiting else ""
        self._notify_changed()

    def shutdown(self) -> None:
        """Record the outcome of the run and close the queue."""
        if not self._active_run.machine.is_active:
            self._record_outcome()
        self.hold_reason = "paused"
        self.is_open = False
        self.queue.close()

    # --- user actions --------------------------------------------------------------------------------

    @property
    def blocked_reason(self) -> str:
        """Why the form cannot be added to the queue; empty: it can."""
        return self._form.blocked_reason

    def add(self) -> None:
        """Add the form to the queue."""
        preset, blocked = self._form.preset, self.blocked_reason
        if blocked:
            self.message_ready.emit(tr("queue.not_added", reason=blocked))
        if blocked or preset is None or not self.is_open:
            return
        stamped = new_run_path(self._history.root, preset.name).name
        name = unique_name(self._form.run_name or stamped, self._taken_names())
        self._enqueue([new_item(name, preset.name, self._form.changes(), self._form.data)])

    def add_sweep(self, planned: list[PlannedRun]) -> None:
        """Add all runs of a sweep to the queue."""
        if self._form.preset is not None and self.is_open:
            preset, data = self._form.preset.name, self._form.data
            self._enqueue([new_item(run.name, preset, run.changes, data) for run in planned])

    def _enqueue(self, items: list[QueueItem]) -> None:
        self._apply_and_save(lambda: self.queue.add(items))
        if self._page is not None:
            self._page.select([item.id for item in items])
        if self._page is None or not self._page.isVisible():
            count = len(self.queue.waiting)
            self.message_ready.emit(tr("queue.added", name=items[-1].name, count=count))

    def start_queue(self) -> None:
        """Start the next run as soon as no run is active."""
        self.hold_reason = ""
        self._notify_changed()
        self._schedule_next()

    def pause_queue(self) -> None:
        """Stop starting runs. An active run is not affected."""
        self.hold_reason = "paused"
        self._notify_changed()

    def set_after_failure(self, policy: AfterFailure) -> None:
        self.queue.after_failure = policy
        self._apply_and_save(self.queue.save)

    def duplicate(self, ids: list[str]) -> None:
        copies: list[QueueItem] = []
        self._apply_and_save(lambda: copies.extend(self.queue.duplicate(ids, self._taken_names())))
        if self._page is not None:
            self._page.select([item.id for item in copies])

    def load_into_form(self, item: QueueItem) -> None:
        """Load the settings and data of an item into the form."""
        try:
            self._form.load_preset(presets.load(item.preset))
        except TraindeckError as error:
            self._show_error(error)
            return
        self._form.restore(list(item.data), item.changes)
        self._form.set_run_name(item.name)

    def _taken_names(self) -> set[str]:
        return {run.name for run in self._history.runs} | self.queue.waiting_names()

    def _apply_and_save(self, change: Callable[[], object], _checked: bool = False) -> None:
        """Change the queue; show an error if it cannot be saved."""
        if not self.is_open:
            return
        had_waiting = bool(self.queue.waiting)
        try:
            change()
        except TraindeckError as error:
            self._show_error(error)
        if self.queue.waiting and not had_waiting:
            # Added while a run is active: start when it ends. Otherwise wait for the user to start the queue.
            self.hold_reason = "" if self._is_busy else "paused"
        self._notify_changed()

    # --- start and end of runs ---------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """Whether a run is active or waits for its automatic restart."""
        return self._active_run.machine.is_active or self._active_run.auto_restart.pending is not None

    def _on_run_changed(self) -> None:
        machine = self._active_run.machine
        if machine.state is RunState.STARTING:
            self._on_run_started(Path(machine.run_dir))
        elif not machine.is_active:
            self._schedule_next()  # a restart may have been cancelled
        self.refresh()

    def _on_run_started(self, run_dir: Path) -> None:
        """A run of this window has started or resumed. Queue items are identified by their run folder."""
        earlier = self.queue.running
        if earlier is not None and not _is_same_folder(Path(earlier.run_dir), run_dir):
            if self.queue.waiting and not self.hold_reason:
                self._hold_if_needed("failed")
            self._finish_item(earlier, "failed")
        self._outcome_pending = True
        item = self.queue.find_by_run_dir(run_dir)
        if item is None or item.state == "running":
            return
        item.state, item.started, item.ended = "running", item.started or time.time(), 0.0
        item.exit_code, item.error, item.params = None, "", {}
        self._apply_and_save(self.queue.save)

    def _on_event(self, event: AnyEvent) -> None:
        item = self.queue.running
        if item is not None and isinstance(event, protocol.Eval) and event.loss is not None:
            item.best_loss = event.loss if item.best_loss is None else min(event.loss, item.best_loss)

    def _on_run_ended(self, _outcome: ProcessOutcome) -> None:
        self._record_outcome()
        self._schedule_next()

    @property
    def will_start_next(self) -> bool:
        """Whether another run starts automatically when the current one ends."""
        return self.is_open and not self.hold_reason and bool(self.queue.waiting)

    def _schedule_next(self) -> None:
        """Start the next run once all other slots have handled the end of this one."""
        QTimer.singleShot(0, self, self._start_next)

    def _start_next(self) -> None:
        if not self.is_open or self._is_busy:
            return
        self._record_outcome()
        while not self.hold_reason and self.queue.waiting and not self._is_busy:
            self._start_item(self.queue.waiting[0])
        if not self.queue.waiting and not self._is_busy and self._has_ended_items:
            self._has_ended_items = False
            self.emptied.emit()

    def _record_outcome(self) -> None:
        """Record the outcome of the ended run, and pause the queue if it was stopped or has failed."""
        item = self.queue.running
        if not self._outcome_pending:
            return
        state = item_state(self._active_run.machine)
        if item is not None:
            # Also before a restart, which another run may replace.
            record_outcome(item, self._active_run.machine)
        if self._active_run.auto_restart.pending is not None:
            return
        self._outcome_pending = False
        if self.queue.waiting and not self.hold_reason:
            self._hold_if_needed("stopped" if self._active_run.stop_requested else state)
        if item is not None:
            self._finish_item(item, state)

    def _finish_item(self, item: QueueItem, state: QueueItemState) -> None:
        item.state, item.ended = state, time.time()
        self._has_ended_items = True
        self._apply_and_save(self.queue.save)

    def _hold_if_needed(self, state: QueueItemState) -> None:
        if state == "stopped":
            self.hold_reason = "stopped"
        elif state == "failed" and self.queue.after_failure == "hold":
            self.hold_reason = "failed"
            self.held_after_failure.emit()
        self.changed.emit()

    def _start_item(self, item: QueueItem) -> None:
        """Start an item. It fails if its preset or settings are no longer valid."""
        try:
            preset = presets.load(item.preset)
            for name, value in item.changes.items():
                config.check_value(name, value, item.name)
            root = self._history.root
            others = {other.name for other in self.queue.waiting if other is not item}
            name = unique_name(item.name, others, root)
            path = root / name
            arguments = command_line.train_arguments(preset, item.changes, item.data, str(path))
        except TraindeckError as error:
            item.error, item.params, item.started = error.code, dict(error.params), time.time()
            if len(self.queue.waiting) > 1:
                self._hold_if_needed("failed")
            self._finish_item(item, "failed")
            return
        item.name, item.run_dir = name, str(path)
        self._active_run.start(arguments, path)

    # --- page ---------------------------------------------------------------------------------------------

    def connect_page(self, page: QueuePage) -> None:
        """Display the queue on the page and connect its actions."""
        self._page = page
        queue, actions = self.queue, page.queue_actions
        page.shown.connect(self.open)  # another window may have closed the queue
        page.shown.connect(self.refresh)
        page.start_button.clicked.connect(lambda: self.pause_queue() if page.is_started else self.start_queue())
        page.policy.activated.connect(lambda index: self.set_after_failure("hold" if index else "go_on"))
        page.add.clicked.connect(self.add)
        page.sweep.clicked.connect(self.open_sweep_dialog)
        page.compare.clicked.connect(lambda: self._compare(page.comparable_runs()))
        page.table.placed.connect(lambda ids, row: self._apply_and_save(lambda: queue.move_before(ids, row)))
        page.table.undo_requested.connect(actions["undo"].trigger)
        changes: dict[str, Callable[[], object]] = {
            "up": lambda: queue.move(page.selected_ids(), -1),
            "down": lambda: queue.move(page.selected_ids(), 1),
            "remove": lambda: queue.remove(page.selected_ids()),
            "put_back": lambda: queue.requeue(page.selected_ids(), self._taken_names()),
            "undo": queue.undo,
            "clear": queue.clear_finished,
        }
        for name, change in changes.items():
            actions[name].triggered.connect(partial(self._apply_and_save, change))
        actions["duplicate"].triggered.connect(lambda: self.duplicate(page.selected_ids()))
        actions["to_form"].triggered.connect(lambda: self.load_into_form(page.table.selected_rows()[0]))
        actions["open"].triggered.connect(lambda: self.open_requested.emit(page.selected_run()))
        actions["resume"].triggered.connect(lambda: self.resume_requested.emit(page.selected_run()))
        self._display(page)

    def _compare(self, paths: list[Path]) -> None:
        """Show the runs in the plots, the best ones if there are too many."""
        found = [(self.queue.find_by_run_dir(path), path) for path in paths]
        losses = {path: item.best_loss for item, path in found if item is not None and item.best_loss is not None}
        best = sorted(paths, key=lambda path: losses.get(path, math.inf))[:_MAX_COMPARED_RUNS]
        self.compare_requested.emit([path for path in paths if path in best])

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """A run folder was renamed, or deleted (None)."""
        item = self.queue.find_by_run_dir(old)
        if item is not None:
            item.run_dir = "" if new is None else str(new)
            item.name = item.name if new is None else new.name
            self._apply_and_save(self.queue.save)

    def open_sweep_dialog(self) -> None:
        """Ask for the settings of a sweep and their values."""
        from app.pages.queue.sweep_dialog import SweepDialog

        form, page = self._form, self._page
        if page is None or form.preset is None or self.blocked_reason or not self.is_open:
            return
        base = form.run_name or form.preset.name
        dialog = SweepDialog(base, form.preset, form.changes(), self._taken_names(), page.model.palette, page.window())
        dialog.added.connect(self.add_sweep)
        dialog.open()

    def _notify_changed(self) -> None:
        self.refresh()
        self.changed.emit()

    def refresh(self) -> None:
        """Update the page if it is visible."""
        if self._page is not None and self._page.isVisible():
            self._display(self._page)

    def _display(self, page: QueuePage) -> None:
        from app.pages.queue.page import QueueState  # delays the first paint

        machine = self._active_run.machine
        page.display(
            QueueState(
                queue=self.queue,
                hold=self.hold_reason,
                is_busy=self._is_busy,
                machine=machine if self.queue.running is not None else None,
                is_restarting=self._active_run.auto_restart.pending is not None,
                blocked=self.blocked_reason,
                is_open=self.is_open,
                owner=self._owner_pid,
                error=self._open_error,
            )
        )


def _is_same_folder(one: Path, other: Path) -> bool:
    """Whether both paths are one folder: the trainer reports its run folder with links resolved."""
    return one == other or os.path.realpath(one) == os.path.realpath(other)
