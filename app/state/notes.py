"""What is worth knowing of a run besides its figures: advice that still holds, and how it got its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.state.log_store import LogEntry
from trainer_core import protocol
from trainer_core.config import knobs
from trainer_core.protocol import AnyEvent


@dataclass(frozen=True, slots=True)
class Note:
    """One of them, as the log has it. `fix`: settings that would mend it, by knob; empty: none."""

    entry: LogEntry
    fix: Mapping[str, Any] = field(default_factory=dict)


class Notes:
    """One for each code, the newest first. `version` grows with every change."""

    def __init__(self) -> None:
        self._known: dict[str, Note] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._known)

    def newest_first(self) -> list[Note]:
        return list(reversed(self._known.values()))

    def add(self, event: AnyEvent, entry: LogEntry | None) -> None:
        """Take an event and what the log made of it. A process that begins finds out anew what is to be advised."""
        match event:
            case protocol.Hello():
                self._known.clear()
            case protocol.Advice():
                self._known.pop(event.code, None)
                if entry is not None and not event.over:
                    # Knobs of a newer trainer cannot be set here.
                    self._known[event.code] = Note(entry, {n: v for n, v in event.fix.items() if n in knobs()})
            case protocol.MemoryMove() if entry is not None:
                self._known.pop(entry.code, None)
                self._known[entry.code] = Note(entry)
            case _:
                return
        self.version += 1
