"""Current advice of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.core.log_store import LogEntry
from trainer_core import protocol
from trainer_core.config import knobs
from trainer_core.protocol import AnyEvent

OOM_RECOVERY = "oom_recovery"
"""Code of the item about the last OOM recovery."""


@dataclass(frozen=True, slots=True)
class AdviceItem:
    """An item of advice. `fix`: settings that help, by knob; empty: none."""

    code: str
    entry: LogEntry
    fix: Mapping[str, Any] = field(default_factory=dict)


class ActiveAdvice:
    """Advice by code, newest first. `version` increases with every change."""

    def __init__(self) -> None:
        self._items: dict[str, AdviceItem] = {}
        self.version = 0

    def newest_first(self) -> list[AdviceItem]:
        return list(reversed(self._items.values()))

    def add(self, event: AnyEvent, entry: LogEntry | None) -> None:
        """Process an event and its log entry. A new process starts without advice."""
        match event:
            case protocol.Hello():
                self._items.clear()
            case protocol.Advice():
                self._items.pop(event.code, None)
                if entry is not None and not event.resolved:
                    # Knobs of a newer trainer cannot be set here.
                    fix = {name: value for name, value in event.suggested_settings.items() if name in knobs()}
                    self._items[event.code] = AdviceItem(event.code, entry, fix)
            case protocol.OomRecovery() if entry is not None:
                self._items.pop(OOM_RECOVERY, None)
                self._items[OOM_RECOVERY] = AdviceItem(OOM_RECOVERY, entry)
            case _:
                return
        self.version += 1
