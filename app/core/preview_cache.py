"""Cache of preview results by configuration."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from trainer_core import protocol

_CAPACITY: Final = 8

PreviewKey = tuple[Any, ...]
"""Configuration of a preview and state of its files, as far as the report depends on them."""
ReportT = TypeVar("ReportT", bound=protocol.Event)


@dataclass(slots=True)
class PreviewResult(Generic[ReportT]):
    """Result of a preview, with its messages."""

    key: PreviewKey
    report_type: type[ReportT]
    report: ReportT | None = None
    warnings: list[protocol.CodedEvent] = field(default_factory=list)
    error: protocol.Error | None = None
    phase: protocol.PhaseName | None = None
    progress: protocol.Progress | None = None

    def process(self, event: protocol.AnyEvent) -> None:
        """Process an event of the preview's trainer."""
        if isinstance(event, self.report_type):
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


class PreviewCache(Generic[ReportT]):
    """The newest successful previews by configuration, and the last one shown."""

    def __init__(self) -> None:
        self._results: OrderedDict[PreviewKey, PreviewResult[ReportT]] = OrderedDict()
        self._last_shown: PreviewResult[ReportT] | None = None

    @property
    def results(self) -> list[PreviewResult[ReportT]]:
        """All cached results, newest first."""
        return list(reversed(self._results.values()))

    def store(self, look: PreviewResult[ReportT]) -> None:
        """Store a result, replacing an earlier one of the same configuration."""
        self._results[look.key] = look
        self._results.move_to_end(look.key)
        while len(self._results) > _CAPACITY:
            self._results.popitem(last=False)
        self._last_shown = look

    def invalidate(self, key: PreviewKey) -> None:
        """Remove the result of a configuration whose preview failed."""
        self._results.pop(key, None)
        self._last_shown = None

    def lookup(self, key: PreviewKey | None) -> tuple[PreviewResult[ReportT] | None, bool]:
        """The result to show for a configuration, and whether it is of this configuration; otherwise it is the last one
        shown.
        """
        if key is not None and key in self._results:
            self._last_shown = self._results[key]
            return self._last_shown, True
        return self._last_shown, False
