"""The log of a run: its newest events and lines of output, which the view formats."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, get_args

from trainer_core import protocol
from trainer_core.protocol import AnyEvent

Level = Literal["info", "warning", "error", "advice", "output"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DEFAULT_CAPACITY: Final = 5_000
MAX_TEXT_CHARS: Final = 4_000

_LEVELS: Final[dict[type[protocol.Event], Level]] = {
    protocol.Hello: "info",
    protocol.Ready: "info",
    protocol.Compiled: "info",
    protocol.Phase: "info",
    protocol.Eval: "info",
    protocol.Sample: "info",
    protocol.BadStep: "warning",
    protocol.OomRecovery: "warning",
    protocol.FlopsProfile: "info",
    protocol.Checkpoint: "info",
    protocol.Advice: "advice",
    protocol.Warn: "warning",
    protocol.Error: "error",
    protocol.Ack: "warning",
    protocol.Done: "info",
}
"""The level of each type of event; measurements are not in the log."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log. `time` is in seconds since the epoch."""

    time: float
    level: Level
    event: AnyEvent | None = None  # None: a line that the trainer printed
    text: str = ""  # of that line


class LogStore:
    """The newest `capacity` entries. `version` is the number of entries of the run."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self.version = 0

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

    def add(self, event: AnyEvent) -> LogEntry | None:
        """Append and return the entry for an event; None for measurements."""
        level = _level(event)
        return None if level is None else self._append(LogEntry(event.t, level, event))

    def add_output(self, text: str, time: float) -> LogEntry:
        """Append a line that the trainer printed."""
        return self._append(LogEntry(time, "output", text=text[:MAX_TEXT_CHARS]))

    def since(self, number: int) -> list[LogEntry]:
        """Return the entries from `number` on, counted from the start of the run."""
        first = self.version - len(self._entries)
        return list(islice(self._entries, max(0, number - first), None))

    def _append(self, entry: LogEntry) -> LogEntry:
        self._entries.append(entry)
        self.version += 1
        return entry


def _level(event: AnyEvent) -> Level | None:
    match event:
        case protocol.Advice(resolved=True) | protocol.OomRecovery(action="grown"):
            return "info"
        case protocol.Ack(accepted=True):
            return None
    return _LEVELS.get(type(event))
