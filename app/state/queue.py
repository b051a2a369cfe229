"""The queue of runs: what waits to be trained, what was, and how it ended. Kept as JSON in the configuration folder.

One window at a time has it (a lock beside the file): two that write it would each lose what the other added. A damaged
file is put aside; what of it can be read is kept. An item that was being trained when the program ended comes back as
`interrupted`.
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

from app.state.settings import config_folder
from trainer_core import files
from trainer_core.messages import TraindeckError
from trainer_core.runs import owners
from trainer_core.runs.run_dir import safe_name

ItemState = Literal["waiting", "running", "done", "failed", "stopped", "interrupted"]
AfterFailure = Literal["go_on", "hold"]
_VERSION: Final = 1
_UNDO: Final = 20  # removals that can be taken back
_KNOWN: Final = {"version", "after_failure", "items"}


class Item(msgspec.Struct, kw_only=True):
    """One run in line: everything that it takes to start it, and how it went."""

    id: str
    name: str  # of its folder
    preset: str
    changes: dict[str, Any] = {}  # knobs that differ from the preset, by name
    data: list[str] = []
    state: ItemState = "waiting"
    run_dir: str = ""  # once it was started
    exit_code: int | None = None
    error: str = ""  # code of messages.CATALOGUE, where it failed with one
    params: dict[str, Any] = {}  # of the error
    best_loss: float | None = None
    steps: int = 0  # that were trained
    has_checkpoint: bool = False
    added: float = 0.0  # seconds since the epoch, as those below; 0: not yet
    started: float = 0.0
    ended: float = 0.0

    @property
    def resumable(self) -> bool:
        """Whether `train --resume` can go on with it."""
        return self.state in ("failed", "stopped", "interrupted") and self.has_checkpoint and bool(self.run_dir)


def new_item(name: str, preset: str, changes: dict[str, Any], data: Sequence[str]) -> Item:
    return Item(id=_new_id(), name=name, preset=preset, changes=changes, data=list(data), added=time.time())


def _new_id() -> str:
    return os.urandom(6).hex()


def free_name(wanted: str, taken: Container[str]) -> str:
    """`wanted` as a folder name, with a number behind it where it is taken."""
    base = safe_name(wanted) or "run"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


class Queue:
    """The items in their order. Whatever changes them is written at once, by `save`, which raises `disk.…`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_folder() / "queue.json"
        self.items: list[Item] = []
        self.after_failure: AfterFailure = "go_on"
        self.put_aside: Path | None = None  # where a damaged file went, or a copy of it
        self.revision = 0  # counts changes, so that a view knows whether to look
        self._held = contextlib.ExitStack()
        self._removed: list[list[tuple[int, Item]]] = []

    # --- file --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take hold of the file and read it.

        Raises `owners.InUse` while another window has it, `disk.…`, `data.unreadable`.
        """
        with files.said_plainly(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            held.enter_context(owners.held(self.path.with_suffix(".lock")))
            self._load()
            self._held = held.pop_all()  # only now: a file that cannot be read keeps nobody out

    def close(self) -> None:
        """Let another window have it."""
        self._held.close()

    def save(self) -> None:
        """Write the file whole. Raises `disk.full` or `disk.not_writable`; the queue goes on in memory."""
        self.revision += 1
        content = {"version": _VERSION, "after_failure": self.after_failure, "items": msgspec.to_builtins(self.items)}
        text = json.dumps(content, ensure_ascii=False, indent=1)
        with files.said_plainly(self.path):
            files.write_atomic(self.path, text.encode("utf-8", "surrogatepass"))

    def _load(self) -> None:
        self.revision += 1
        try:
            raw = files.retry_sharing(self.path.read_bytes, 1.0)
        except FileNotFoundError:
            return
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise TraindeckError("data.unreadable", detail=str(error), path=str(self.path), reason=reason) from error
        try:
            content = json.loads(raw.decode("utf-8-sig", "surrogatepass"))
            items, whole = _items_of(content)
        except (ValueError, RecursionError):
            items, whole, content = [], False, {}
        if not whole:
            self._keep_aside(raw)
        self.items = items
        self.after_failure = "hold" if content.get("after_failure") == "hold" else "go_on"
        for item in self.items:
            if item.state == "running":
                item.state = "interrupted"

    def _keep_aside(self, raw: bytes) -> None:
        """Not everything in the file could be read: it stays beside the one that is written from now on."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with files.said_plainly(aside):
            files.write_atomic(aside, raw)
        self.put_aside = aside

    # --- what is there -----------------------------------------------------------------------------------

    def get(self, item_id: str) -> Item | None:
        return next((item for item in self.items if item.id == item_id), None)

    def of_run(self, run_dir: Path) -> Item | None:
        """The newest item that trained in this folder."""
        return next((item for item in reversed(self.items) if item.run_dir and Path(item.run_dir) == run_dir), None)

    @property
    def waiting(self) -> list[Item]:
        return [item for item in self.items if item.state == "waiting"]

    @property
    def running(self) -> Item | None:
        return next((item for item in self.items if item.state == "running"), None)

    def names(self) -> set[str]:
        """Of the runs that are still to be made."""
        return {item.name for item in self.items if item.state == "waiting"}

    # --- changing it -------------------------------------------------------------------------------------

    def add(self, items: Iterable[Item]) -> None:
        self.items += items
        self.save()

    def duplicate(self, ids: Container[str], taken: set[str]) -> list[Item]:
        """The same settings once more, each behind its original. `taken`: names of runs that exist."""
        copies = []
        for item in [item for item in self.items if item.id in ids]:
            name = free_name(item.name, taken | {known.name for known in self.items})
            copy = new_item(name, item.preset, dict(item.changes), item.data)
            self.items.insert(self.items.index(item) + 1, copy)
            copies.append(copy)
        self.save()
        return copies

    def remove(self, ids: Container[str]) -> None:
        """Take items out of the line, but the one that is being trained. Runs on disk stay."""
        gone = [(place, item) for place, item in enumerate(self.items) if item.id in ids and item.state != "running"]
        if not gone:
            return
        self._removed = [*self._removed, gone][-_UNDO:]
        self.items = [item for item in self.items if all(item is not other for _, other in gone)]
        self.save()

    def clear_finished(self) -> None:
        self.remove({item.id for item in self.items if item.state == "done"})

    @property
    def can_undo(self) -> bool:
        return bool(self._removed)

    def undo(self) -> list[Item]:
        """Put the last that were removed back where they stood."""
        back = self._removed.pop() if self._removed else []
        for place, item in back:
            self.items.insert(place, item)
        self.save()
        return [item for _, item in back]

    def put_back(self, ids: Container[str], taken: set[str]) -> None:
        """In line again, to be trained from the beginning as a new run; the run that there is stays as it is."""
        for item in self.items:
            if item.id in ids and item.state not in ("waiting", "running"):
                name = free_name(item.name, taken | self.names())
                fresh = new_item(name, item.preset, item.changes, item.data)
                fresh.id = item.id
                self.items[self.items.index(item)] = fresh
        self.save()

    def move(self, ids: Container[str], by: int) -> None:
        """One place up (-1) or down (1); several keep their order, and stop together at the end."""
        order = range(len(self.items)) if by < 0 else range(len(self.items) - 1, -1, -1)
        edge = -1 if by < 0 else len(self.items)
        for place in order:
            if self.items[place].id not in ids:
                continue
            target = place + by
            if target == edge:
                edge = place
                continue
            self.items[place], self.items[target] = self.items[target], self.items[place]
        self.save()

    def place(self, ids: Container[str], before: int) -> None:
        """Put items, in their order, in front of the row `before` (their number: at the end)."""
        moved = [item for item in self.items if item.id in ids]
        head = [item for item in self.items[:before] if item.id not in ids]
        tail = [item for item in self.items[before:] if item.id not in ids]
        self.items = [*head, *moved, *tail]
        self.save()


def _items_of(content: Any) -> tuple[list[Item], bool]:
    """The items that can be read, and whether those are all that there was. Raises ValueError for no queue at all."""
    if not isinstance(content, dict) or not isinstance(content.get("items", []), list):
        raise ValueError("not a queue")
    items: list[Item] = []
    whole = content.get("version") == _VERSION and content.keys() <= _KNOWN
    for entry in content.get("items", []):
        try:
            item = msgspec.convert(entry, Item)
        except msgspec.ValidationError:
            whole = False
            continue
        if any(item.id == known.id for known in items):
            item.id = _new_id()
        items.append(item)
    return items, whole
