"""Starts queued runs one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.core import command_line
from app.core.active_run import ActiveRun
from app.core.history.run_list import RunList
from app.core.installation import installation
from app.core.queue import QueueItem, QueueItemState, RunQueue, item_state, new_item, record_outcome, update_from_disk
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

HoldReason = Literal["", "opened", "paused", "stopped", "failed"]
"""Why no queued run starts automatically; empty: the next one starts when no run is active."""


class QueueController(QObject):
    """Evaluates the end of every run of this window: a run that the user stops also pauses the queue."""

    changed = Signal()  # the items, or whether they start
    items_added = Signal(list)  # their ids
    message_ready = Signal(str)  # result of a request to add runs
    held_after_failure = Signal()  # a run failed, which has paused the queue
    emptied = Signal()  # all items have ended

    def __init__(
        self, form: SetupForm, active_run: ActiveRun, history: RunList, show_error: Callable[[TraindeckError], None]
    ) -> None:
        super().__init__(active_run)
        self.form, self.active_run, self._history, self._show_error = form, active_run, history, show_error
        self.queue = RunQueue()
        self.hold_reason: HoldReason = ""
        self.owner_pid: int | None = None  # process id of another window that has opened the queue
        self.open_error: TraindeckError | None = None  # why the queue cannot be opened
        self.is_open = False  # this window has opened the queue
        self._outcome_pending = False  # a run has started whose outcome is not recorded
        self._has_ended_items = False  # since the queue was last empty
        active_run.state_changed.connect(self._on_run_changed)
        active_run.event_received.connect(self._on_event)
        active_run.ended.connect(self._on_run_ended)
        installation.changed.connect(self._schedule_next)

    def open(self) -> None:
        """Read the queue, unless another window has opened it. No item starts automatically."""
        if self.is_open:
            return
        self.owner_pid = self.open_error = None
        try:
            self.queue.open()
        except file_locks.LockHeldError as used:
            self.owner_pid = used.pid
        except TraindeckError as error:
            self.open_error = error
        else:
            self.is_open = True
            for item in self.queue.items:
                if item.state == "interrupted":
                    update_from_disk(item, self._history.get(Path(item.run_dir)) if item.run_dir else None)
            self.hold_reason = "opened" if self.queue.waiting else ""
        self.changed.emit()

    def shutdown(self) -> None:
        """Record the outcome of the run and close the queue."""
        if not self.active_run.machine.is_active:
            self._record_outcome()
        self.hold_reason = "paused"
        self.is_open = False
        self.queue.close()

    # --- user actions --------------------------------------------------------------------------------

    def add(self) -> None:
        """Add the form to the queue."""
        if blocked := self.form.blocked_reason:
            self.message_ready.emit(tr("queue.not_added", reason=blocked))
        elif self.is_open:
            self._enqueue([self._create_item()])

    def add_first(self) -> str:
        """Add the form before the other items and start the queue. Returns the id of the item; empty: not added."""
        if not self.is_open or self.form.blocked_reason:
            return ""
        item = self._create_item()
        self.apply(lambda: self.queue.add([item]))
        self.apply(lambda: self.queue.move_before({item.id}, 0))
        self.start_queue()
        return item.id

    def _create_item(self) -> QueueItem:
        """The configuration of the form."""
        form, preset = self.form, self.form.preset.name
        stamped = new_run_path(self._history.root, preset).name
        name = unique_name(form.run_name or stamped, self.taken_names())
        return new_item(name, preset, form.changes(), form.data, form.machine)

    def add_sweep(self, planned: list[PlannedRun]) -> None:
        """Add all runs of a sweep to the queue."""
        if self.is_open:
            preset, data, machine = self.form.preset.name, self.form.data, self.form.machine
            self._enqueue([new_item(run.name, preset, run.changes, data, machine) for run in planned])

    def _enqueue(self, items: list[QueueItem]) -> None:
        self.apply(lambda: self.queue.add(items))
        self.items_added.emit([item.id for item in items])
        self.message_ready.emit(tr("queue.added", name=items[-1].name, count=len(self.queue.waiting)))

    def duplicate(self, ids: list[str]) -> None:
        copies: list[QueueItem] = []
        self.apply(lambda: copies.extend(self.queue.duplicate(ids, self.taken_names())))
        self.items_added.emit([item.id for item in copies])

    def start_queue(self) -> None:
        """Start the next run as soon as no run is active."""
        self.hold_reason = ""
        self.changed.emit()
        self._schedule_next()

    def pause_queue(self) -> None:
        """Stop starting runs. An active run is not affected."""
        self.hold_reason = "paused"
        self.changed.emit()

    def load_into_form(self, item: QueueItem) -> None:
        """Load the settings and data of an item into the form."""
        try:
            self.form.load(presets.load(item.preset), list(item.data), item.changes)
        except TraindeckError as error:
            self._show_error(error)
            return
        self.form.set_run_name(item.name)
        self.form.set_machine(item.machine)

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """A run folder was renamed, or deleted (None)."""
        item = self.queue.find_by_run_dir(old)
        if item is not None:
            item.run_dir = "" if new is None else str(new)
            item.name = item.name if new is None else new.name
            self.apply(self.queue.save)

    def taken_names(self) -> set[str]:
        return {run.name for run in self._history.runs} | self.queue.waiting_names()

    def apply(self, change: Callable[[], object]) -> None:
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
            self.hold_reason = "" if self._has_run else "paused"
        self.changed.emit()

    # --- start and end of runs ---------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether no item can start: a run is active or waits for its automatic restart, or setup has not finished."""
        return self._has_run or not installation.is_complete

    @property
    def _has_run(self) -> bool:
        return self.active_run.machine.is_active or self.active_run.auto_restart.pending is not None

    @property
    def will_start_next(self) -> bool:
        """Whether another run starts automatically when the current one ends."""
        return self.is_open and not self.hold_reason and bool(self.queue.waiting)

    def _on_run_changed(self) -> None:
        machine = self.active_run.machine
        if machine.state is RunState.STARTING:
            self._on_run_started(Path(machine.run_dir))
        elif not machine.is_active:
            self._schedule_next()  # a restart may have been cancelled

    def _on_run_started(self, run_dir: Path) -> None:
        """A run of this window has started or resumed. Queue items are identified by their run folder."""
        earlier = self.queue.running
        if earlier is not None and not _is_same_folder(Path(earlier.run_dir), run_dir):
            self._finish_item(earlier, "failed", self._find_hold_reason("failed"))
        self._outcome_pending = True
        item = self.queue.find_by_run_dir(run_dir)
        if item is None or item.state == "running":
            return
        item.state, item.started, item.ended = "running", item.started or time.time(), 0.0
        item.exit_code, item.error, item.params = None, "", {}
        self.apply(self.queue.save)

    def _on_event(self, event: AnyEvent) -> None:
        item = self.queue.running
        if item is not None and isinstance(event, protocol.Eval) and event.loss is not None:
            item.best_loss = event.loss if item.best_loss is None else min(event.loss, item.best_loss)

    def _on_run_ended(self, _outcome: ProcessOutcome) -> None:
        self._record_outcome()
        self._schedule_next()

    def _schedule_next(self) -> None:
        """Start the next run once all other slots have handled the end of this one."""
        QTimer.singleShot(0, self, self._start_next)

    def _start_next(self) -> None:
        if not self.is_open or self.is_busy:
            return
        self._record_outcome()
        while self.will_start_next and not self.is_busy:
            self._start_item(self.queue.waiting[0])
        if not self.queue.waiting and not self.is_busy and self._has_ended_items:
            self._has_ended_items = False
            self.emptied.emit()

    def _record_outcome(self) -> None:
        """Record the outcome of the ended run, and pause the queue if it was stopped or has failed."""
        item = self.queue.running
        if not self._outcome_pending:
            return
        if item is not None:
            # Also before a restart, which another run may replace.
            record_outcome(item, self.active_run.machine)
        if self.active_run.auto_restart.pending is not None:
            return
        self._outcome_pending = False
        state = item_state(self.active_run.machine)
        hold = self._find_hold_reason("stopped" if self.active_run.stop_requested else state)
        if item is not None:
            self._finish_item(item, state, hold)
        else:
            self._hold(hold)

    def _find_hold_reason(self, state: QueueItemState) -> HoldReason:
        """Why a run that ended in this state pauses the queue; empty if it does not."""
        if self.hold_reason or not self.queue.waiting:
            return ""
        if state == "failed" and self.queue.after_failure == "hold":
            return "failed"
        return "stopped" if state == "stopped" else ""

    def _hold(self, reason: HoldReason) -> None:
        if reason:
            self.hold_reason = reason
            self.changed.emit()
        if reason == "failed":
            self.held_after_failure.emit()

    def _finish_item(self, item: QueueItem, state: QueueItemState, hold: HoldReason) -> None:
        self._hold(hold)
        item.state, item.ended = state, time.time()
        self._has_ended_items = True
        self.apply(self.queue.save)

    def _start_item(self, item: QueueItem) -> None:
        """Start an item. It fails if its preset or settings are no longer valid."""
        try:
            preset = presets.load(item.preset)
            for name, value in item.changes.items():
                config.check_value(name, value, item.name)
            others = {other.name for other in self.queue.waiting if other is not item}
            path = self._history.root / unique_name(item.name, others, self._history.root)
            arguments = command_line.train_arguments(preset, item.changes, item.data, str(path))
            arguments = command_line.remote_arguments(arguments, item.machine)
        except TraindeckError as error:
            item.error, item.params, item.started = error.code, dict(error.params), time.time()
            item.state = "failed"  # waits no longer
            self._finish_item(item, "failed", self._find_hold_reason("failed"))
            return
        item.name, item.run_dir = path.name, str(path)
        self.active_run.start(arguments, path)


def _is_same_folder(one: Path, other: Path) -> bool:
    """Whether both paths are one folder: the trainer reports its run folder with links resolved."""
    return one == other or os.path.realpath(one) == os.path.realpath(other)
