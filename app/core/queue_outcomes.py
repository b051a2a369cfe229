"""Outcomes of queued runs."""

from __future__ import annotations

from typing import Final

from app.core.queue import QueueItem, QueueItemState
from app.core.run_state import RunState, RunStateMachine
from trainer_core import error_codes
from trainer_core.runs.run_dir import RunSummary

_ITEM_STATE_BY_RUN_STATE: Final[dict[RunState, QueueItemState]] = {
    RunState.FINISHED: "done",
    RunState.STOPPED: "stopped",
    RunState.FAILED: "failed",
    RunState.CRASHED: "failed",
}


def item_state(machine: RunStateMachine) -> QueueItemState:
    """Item state of an ended run."""
    return _ITEM_STATE_BY_RUN_STATE.get(machine.state, "failed")


def record_outcome(item: QueueItem, machine: RunStateMachine) -> None:
    """Record steps, checkpoint and error of an ended run."""
    item.steps, item.exit_code = machine.step, machine.exit_code
    item.has_checkpoint = machine.has_checkpoint
    item.error, item.params = "", {}
    if item_state(machine) != "failed":
        return
    if machine.last_error is not None:
        item.error, item.params = machine.last_error.code, dict(machine.last_error.params)
    elif machine.exit_code is not None:
        cause = error_codes.classify_exit_code(machine.exit_code, crashed=machine.state is RunState.CRASHED)
        item.error = cause.code if cause is not None else ""


def update_from_disk(item: QueueItem, summary: RunSummary | None) -> None:
    """Record the outcome of a run that ended while no window was open."""
    if summary is None:
        return
    item.state = "done" if summary.state == "finished" else "failed" if summary.state == "failed" else "interrupted"
    if summary.state == "failed" and summary.error is not None:
        item.error, item.params = summary.error
    item.has_checkpoint, item.best_loss, item.steps = summary.checkpoints > 0, summary.best_loss, summary.step
