"""Event sink that records all events."""

from __future__ import annotations

from trainer_core import protocol


class RecordingSink:
    def __init__(self) -> None:
        self.events: list[protocol.AnyEvent] = []

    def write(self, event: protocol.AnyEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def events_of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]
