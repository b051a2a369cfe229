"""Undo and redo of whole states. No Qt."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

StateT = TypeVar("StateT")

MAX_UNDO: Final = 200  # maximum undo steps


class UndoStack(Generic[StateT]):
    """States, oldest first, each with the label of the change that led to it.

    Consecutive changes of the same field are merged until `end_merge`.
    """

    def __init__(self, state: StateT) -> None:
        self.reset(state)

    def reset(self, state: StateT) -> None:
        """Remove all other states."""
        self._entries = [(state, "")]
        self._index = 0
        self._merge_label = ""

    def push(self, state: StateT, label: str, *, mergeable: bool = False) -> None:
        """Push a new state. `mergeable`: further changes of the same field are merged with it."""
        if state == self._entries[self._index][0]:
            return
        del self._entries[self._index + 1 :]
        if mergeable and self._merge_label == label:
            self._entries.pop()
            if self._entries[-1][0] == state:  # changed back to the previous state
                self._index, self._merge_label = len(self._entries) - 1, ""
                return
        self._entries = [*self._entries, (state, label)][-MAX_UNDO - 1 :]
        self._index = len(self._entries) - 1
        self._merge_label = label if mergeable else ""

    def replace_current(self, state: StateT) -> None:
        """Change the current state without an undo step."""
        self._entries[self._index] = (state, self._entries[self._index][1])

    def end_merge(self) -> None:
        """The next change is not merged."""
        self._merge_label = ""

    @property
    def undo_label(self) -> str | None:
        """Label of the change that `undo` reverts; None: nothing to undo."""
        return self._entries[self._index][1] if self._index else None

    @property
    def redo_label(self) -> str | None:
        """Label of the change that `redo` restores; None: nothing to redo."""
        return self._entries[self._index + 1][1] if self._index + 1 < len(self._entries) else None

    def undo(self) -> StateT | None:
        """Return the previous state; None if there is none."""
        return self._move(-1)

    def redo(self) -> StateT | None:
        """Return the state that was undone last; None if there is none."""
        return self._move(1)

    def _move(self, offset: int) -> StateT | None:
        if not 0 <= self._index + offset < len(self._entries):
            return None
        self._index += offset
        self._merge_label = ""
        return self._entries[self._index][0]
