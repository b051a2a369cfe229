"""Undo and redo of whole states, small enough to be kept as they are. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S")

MOST: Final = 200  # steps back


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """A state, and what changed when it was left for the next: for the menu's words."""

    state: S
    what: str


class UndoStack(Generic[S]):
    """What was, what is, and what was taken back.

    Changes of the same thing that follow one another (the letters of a number) are one step, until `settle`.
    """

    def __init__(self, present: S) -> None:
        self.begin(present)

    def begin(self, present: S) -> None:
        """Forget everything: this is where it starts."""
        self.present = present
        self._back: list[Step[S]] = []
        self._forth: list[Step[S]] = []
        self._typing = ""

    def push(self, state: S, what: str, *, typing: bool = False) -> None:
        """It is `state` now. `typing`: more of it may follow."""
        if state == self.present:
            return
        if not (typing and self._typing == what and self._back):
            self._back = [*self._back, Step(self.present, what)][-MOST:]
        elif self._back[-1].state == state:  # typed back to what it was
            self._back.pop()
            what = ""
        self._typing = what if typing else ""
        self._forth = []
        self.present = state

    def settle(self) -> None:
        """What is typed next is a step of its own."""
        self._typing = ""

    @property
    def undoes(self) -> str | None:
        """What `undo` takes back; None: nothing."""
        return self._back[-1].what if self._back else None

    @property
    def redoes(self) -> str | None:
        """What `redo` brings back; None: nothing."""
        return self._forth[-1].what if self._forth else None

    def undo(self) -> S | None:
        """The state before the last step; None where there is none."""
        return self._move(self._back, self._forth)

    def redo(self) -> S | None:
        """The state that was last taken back; None where there is none."""
        return self._move(self._forth, self._back)

    def _move(self, source: list[Step[S]], target: list[Step[S]]) -> S | None:
        if not source:
            return None
        step = source.pop()
        target.append(Step(self.present, step.what))
        self.present = step.state
        self._typing = ""
        return step.state
