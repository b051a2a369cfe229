"""Undo and redo of whole states. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

StateT = TypeVar("StateT")

MAX_UNDO: Final = 200  # maximum undo steps


@dataclass(frozen=True, slots=True)
class UndoEntry(Generic[StateT]):
    """A state, and the label of the change that followed it."""

    state: StateT
    label: str


class UndoStack(Generic[StateT]):
    """Undo and redo stacks.

    Consecutive changes of the same field are merged until `end_merge`.
    """

    def __init__(self, present: StateT) -> None:
        self.reset(present)

    def reset(self, present: StateT) -> None:
        """Clear both stacks."""
        self.current = present
        self._undo_entries: list[UndoEntry[StateT]] = []
        self._redo_entries: list[UndoEntry[StateT]] = []
        self._merge_label = ""

    def push(self, state: StateT, label: str, *, mergeable: bool = False) -> None:
        """Push a new state. `mergeable`: further changes of the same field are merged with it."""
        if state == self.current:
            return
        if not (mergeable and self._merge_label == label and self._undo_entries):
            self._undo_entries = [*self._undo_entries, UndoEntry(self.current, label)][-MAX_UNDO:]
        elif self._undo_entries[-1].state == state:  # changed back to the previous state
            self._undo_entries.pop()
            label = ""
        self._merge_label = label if mergeable else ""
        self._redo_entries = []
        self.current = state

    def end_merge(self) -> None:
        """The next change is not merged."""
        self._merge_label = ""

    @property
    def undo_label(self) -> str | None:
        """Label of the change that `undo` reverts; None: nothing to undo."""
        return self._undo_entries[-1].label if self._undo_entries else None

    @property
    def redo_label(self) -> str | None:
        """Label of the change that `redo` restores; None: nothing to redo."""
        return self._redo_entries[-1].label if self._redo_entries else None

    def undo(self) -> StateT | None:
        """Return the previous state; None if there is none."""
        return self._move(self._undo_entries, self._redo_entries)

    def redo(self) -> StateT | None:
        """Return the state that was undone last; None if there is none."""
        return self._move(self._redo_entries, self._undo_entries)

    def _move(self, source: list[UndoEntry[StateT]], target: list[UndoEntry[StateT]]) -> StateT | None:
        if not source:
            return None
        step = source.pop()
        target.append(UndoEntry(self.current, step.label))
        self.current = step.state
        self._merge_label = ""
        return step.state
