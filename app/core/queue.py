"""Queue of runs and their outcomes, stored as JSON in the configuration folder.

A lock file ensures that only one window opens the queue. A file that cannot be decoded is backed up. Items that were
running when the program ended become `interrupted`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from app.core.run_state import RunState, RunStateMachine
from app.core.settings import RemoteMachine, config_folder
from trainer_core import error_codes
from trainer_core.messages import TraindeckError
from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import RunSummary, unique_name
from trainer_core.system import files

QueueItemState = Literal["waiting", "running", "done", "failed", "stopped", "interrupted"]
AfterFailure = Literal["go_on", "hold"]
_ITEM_STATE_BY_RUN_STATE: Final[dict[RunState, QueueItemState]] = {
    RunState.FINISHED: "done",
    RunState.STOPPED: "stopped",
    RunState.FAILED: "failed",
    RunState.CRASHED: "failed",
}


class QueueItem(msgspec.Struct, kw_only=True):
    """A queued run: its configuration and outcome."""

    id: str
    name: str  # of the run folder
    preset: str
    changes: dict[str, Any] = {}  # knobs that differ from the preset, by name
    data: list[str] = []
    machine: RemoteMachine | None = None  # that trains it; None: this one
    state: QueueItemState = "waiting"
    run_dir: str = ""  # empty until it is started
    exit_code: int | None = None
    error: str = ""  # message code
    params: dict[str, Any] = {}
    best_loss: float | None = None
    steps: int = 0  # completed
    has_checkpoint: bool = False
    added: float = 0.0  # seconds since the epoch, like the two below; 0: not yet
    started: float = 0.0
    ended: float = 0.0

    @property
    def can_resume(self) -> bool:
        """Whether `train --resume` can continue it."""
        return self.state in ("failed", "stopped", "interrupted") and self.has_checkpoint and bool(self.run_dir)


def new_item(
    name: str, preset: str, changes: dict[str, Any], data: Sequence[str], machine: RemoteMachine | None = None
) -> QueueItem:
    return QueueItem(
        id=os.urandom(6).hex(), name=name, preset=preset, changes=dict(changes), data=list(data), machine=machine,
        added=time.time(),
    )  # fmt: skip


class _QueueFile(msgspec.Struct, forbid_unknown_fields=True):
    items: list[QueueItem]
    after_failure: AfterFailure = "go_on"
    version: Literal[1] = 1


class RunQueue:
    """The items in their order. Methods that change them save the file, and raise the errors of `save`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_folder() / "queue.json"
        self.items: list[QueueItem] = []
        self.after_failure: AfterFailure = "go_on"
        self.damaged_backup: Path | None = None  # copy of a damaged file
        self.revision = 0  # incremented by every change
        self._lock = contextlib.ExitStack()
        self._undo_stack: list[list[tuple[int, QueueItem]]] = []

    def open(self) -> None:
        """Lock and read the file.

        Raises `file_locks.LockHeldError` while another window has it, `disk.…`, `data.unreadable`.
        """
        with files.translate_os_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            held.enter_context(file_locks.file_lock(self.path.with_suffix(".lock")))
            self._load()
            self._lock = held.pop_all()  # a file that cannot be read is not locked

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def save(self) -> None:
        """Write the file. Raises `disk.full` or `disk.not_writable`; the items in memory stay changed."""
        self.revision += 1
        content = msgspec.to_builtins(_QueueFile(self.items, self.after_failure))
        text = json.dumps(content, ensure_ascii=False, indent=1)  # msgspec does not encode lone surrogates in paths
        with files.translate_os_errors(self.path):
            files.write_atomic(self.path, text.encode("utf-8", "surrogatepass"))

    def _load(self) -> None:
        try:
            raw = files.retry_sharing_violation(self.path.read_bytes, 1.0)
        except FileNotFoundError:
            return
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise TraindeckError("data.unreadable", detail=str(error), path=str(self.path), reason=reason) from error
        try:
            content = msgspec.convert(json.loads(raw.decode("utf-8-sig", "surrogatepass")), _QueueFile)
        except (ValueError, RecursionError, msgspec.ValidationError):
            self._back_up(raw)
            return
        self.items, self.after_failure = content.items, content.after_failure
        self.revision += 1
        for item in self.items:
            if item.state == "running":
                item.state = "interrupted"

    def _back_up(self, raw: bytes) -> None:
        backup = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with files.translate_os_errors(backup):
            files.write_atomic(backup, raw)
        self.damaged_backup = backup

    def find_by_run_dir(self, run_dir: Path) -> QueueItem | None:
        """The newest item that trained in this folder."""
        return next((item for item in reversed(self.items) if item.run_dir and Path(item.run_dir) == run_dir), None)

    @property
    def waiting(self) -> list[QueueItem]:
        return [item for item in self.items if item.state == "waiting"]

    @property
    def running(self) -> QueueItem | None:
        return next((item for item in self.items if item.state == "running"), None)

    def waiting_names(self) -> set[str]:
        return {item.name for item in self.waiting}

    def add(self, items: Iterable[QueueItem]) -> None:
        self.items += items
        self.save()

    def duplicate(self, ids: Container[str], taken: set[str]) -> list[QueueItem]:
        """Insert a copy after each item. `taken`: names of existing runs."""
        copies = []
        for item in [item for item in self.items if item.id in ids]:
            name = unique_name(item.name, taken | {known.name for known in self.items})
            copy = new_item(name, item.preset, item.changes, item.data, item.machine)
            self.items.insert(self.items.index(item) + 1, copy)
            copies.append(copy)
        self.save()
        return copies

    def remove(self, ids: Container[str]) -> None:
        """Remove items, except a running one. Runs on disk are not deleted."""
        removed = [(row, item) for row, item in enumerate(self.items) if item.id in ids and item.state != "running"]
        if removed:
            self._undo_stack.append(removed)
            for _, item in removed:
                self.items.remove(item)
            self.save()

    def clear_finished(self) -> None:
        self.remove({item.id for item in self.items if item.state == "done"})

    @property
    def can_undo(self) -> bool:
        return bool(self._undo_stack)

    def undo(self) -> None:
        """Restore the items of the last removal."""
        for row, item in self._undo_stack.pop() if self._undo_stack else ():
            self.items.insert(row, item)
        self.save()

    def requeue(self, ids: Container[str], taken: set[str]) -> None:
        """Queue ended items again as new runs; the runs on disk stay."""
        for item in self.items:
            if item.id in ids and item.state not in ("waiting", "running"):
                name = unique_name(item.name, taken | self.waiting_names())
                fresh = new_item(name, item.preset, item.changes, item.data, item.machine)
                fresh.id = item.id
                self.items[self.items.index(item)] = fresh
        self.save()

    def move(self, ids: Container[str], by: int) -> None:
        """Move items, as one block in their order, one row up (-1) or down (1)."""
        rows = [row for row, item in enumerate(self.items) if item.id in ids]
        if rows:
            self.move_before(ids, max(0, rows[0] - 1) if by < 0 else rows[-1] + 2)

    def move_before(self, ids: Container[str], row: int) -> None:
        """Move items, in their order, in front of `row`."""
        moved = [item for item in self.items if item.id in ids]
        head = [item for item in self.items[:row] if item.id not in ids]
        tail = [item for item in self.items[row:] if item.id not in ids]
        self.items = [*head, *moved, *tail]
        self.save()


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
