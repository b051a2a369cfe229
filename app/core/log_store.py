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
    protocol.DataReport: "info",
    protocol.Phase: "info",
    protocol.CheckReport: "info",
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
    """One entry of the log. `number` counts all entries of the run; `time` is in seconds since the epoch."""

    number: int
    time: float
    level: Level
    event: AnyEvent | None = None  # None: a line that the trainer printed
    text: str = ""  # of that line
    previous_batch: tuple[int | None, int | None] = (None, None)  # batch_size and accumulation before an OOM recovery


class LogStore:
    """The newest `capacity` entries. `version` grows with every change."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._batch: tuple[int | None, int | None] = (None, None)  # current batch_size, gradient_accumulation_steps
        self.version = 0  # number of entries of the run

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

    def add(self, event: AnyEvent) -> LogEntry | None:
        """Append and return the entry for an event; None for measurements."""
        level = _level(event)
        if level is None:
            return None
        previous = self._batch
        match event:
            case protocol.Hello():
                self._batch = (event.config.get("batch_size"), event.config.get("gradient_accumulation_steps"))
            case protocol.CheckReport():
                self._batch = (event.chosen.batch_size, event.chosen.gradient_accumulation_steps)
            case protocol.OomRecovery():
                self._batch = (event.batch_size, event.gradient_accumulation_steps)
        return self._append(LogEntry(self.version, event.t, level, event, previous_batch=previous))

    def add_output(self, text: str, time: float) -> LogEntry:
        """Append a line that the trainer printed."""
        return self._append(LogEntry(self.version, time, "output", text=text[:MAX_TEXT_CHARS]))

    def since(self, number: int) -> list[LogEntry]:
        """Return the entries from `number` on."""
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
        case protocol.CheckReport() if event.verdict != "fits":
            return "warning"
        case protocol.Ack(accepted=True):
            return None
    return _LEVELS.get(type(event))
