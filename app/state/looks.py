"""What trainers that only look at something have found: one report for each configuration that was looked at."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from trainer_core import protocol

_KEPT: Final = 8

Key = tuple[Any, ...]
"""The configuration of a look and the state of its files, as far as its report depends on them."""
R = TypeVar("R", bound=protocol.Event)


@dataclass(slots=True)
class Look(Generic[R]):
    """One look: what was found, and what was said on the way."""

    key: Key
    kind: type[R]
    report: R | None = None
    warnings: list[protocol.Notice] = field(default_factory=list)
    error: protocol.Error | None = None
    phase: protocol.PhaseName | None = None
    progress: protocol.Progress | None = None

    def add(self, event: protocol.AnyEvent) -> None:
        """Take an event of the trainer that looks."""
        if isinstance(event, self.kind):
            self.report = event
        match event:
            case protocol.Phase():
                self.phase = event.phase
            case protocol.Progress():
                self.progress = event
            case protocol.Warn() | protocol.Advice():
                self.warnings.append(event)
            case protocol.Error():
                self.error = event
            case _:
                pass


class Looks(Generic[R]):
    """The newest looks that ended with a report, by configuration; and the one that was shown last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Look[R]] = OrderedDict()
        self._newest: Look[R] | None = None

    @property
    def known(self) -> list[Look[R]]:
        """All that are remembered, the newest first."""
        return list(reversed(self._known.values()))

    def keep(self, look: Look[R]) -> None:
        """Remember a finished look in place of an earlier one of the same configuration."""
        self._known[look.key] = look
        self._known.move_to_end(look.key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self._newest = look

    def drop(self, key: Key) -> None:
        """A look at this configuration has failed: what earlier ones found holds no more, and is not shown."""
        self._known.pop(key, None)
        self._newest = None

    def show(self, key: Key | None) -> tuple[Look[R] | None, bool]:
        """The look to show for a configuration, and whether it is of that one: else it is the last one shown."""
        if key is not None and key in self._known:
            self._newest = self._known[key]
            return self._newest, True
        return self._newest, False
