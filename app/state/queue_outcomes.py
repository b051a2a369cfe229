"""What became of a run of the queue: while the window trained it, or while no window watched."""

from __future__ import annotations

from typing import Final

from app.state.queue import Item, ItemState
from app.state.run_machine import RunMachine, RunState
from trainer_core import failures
from trainer_core.runs.run_dir import RunSummary

_STATES: Final[dict[RunState, ItemState]] = {
    RunState.FINISHED: "done",
    RunState.STOPPED: "stopped",
    RunState.FAILED: "failed",
    RunState.CRASHED: "failed",
}


def of_machine(machine: RunMachine) -> ItemState:
    """How the run went that is over now."""
    return _STATES.get(machine.state, "failed")


def note(item: Item, machine: RunMachine) -> None:
    """How far the run came that is over now, and what ended it."""
    item.steps, item.exit_code = machine.step, machine.exit_code
    item.has_checkpoint = machine.has_checkpoint
    item.error, item.params = "", {}
    if of_machine(machine) != "failed":
        return
    if machine.last_error is not None:
        item.error, item.params = machine.last_error.code, dict(machine.last_error.params)
    elif machine.exit_code is not None:
        cause = failures.of_exit_code(machine.exit_code, crashed=machine.state is RunState.CRASHED)
        item.error = cause.code if cause is not None else ""


def catch_up(item: Item, on_disk: RunSummary | None) -> None:
    """What became of a run while no window watched."""
    if on_disk is None:
        return
    item.state = "done" if on_disk.state == "finished" else "failed" if on_disk.state == "failed" else "interrupted"
    if on_disk.state == "failed" and on_disk.error is not None:
        item.error, item.params = on_disk.error
    item.has_checkpoint, item.best_loss, item.steps = on_disk.checkpoints > 0, on_disk.best_loss, on_disk.step
