"""Results of data previews and checks, cached by configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from app.core.preview_keys import PreviewKey
from trainer_core import protocol

_CAPACITY: Final = 8
ReportT = TypeVar("ReportT", bound=protocol.Event)


@dataclass(slots=True)
class PreviewResult(Generic[ReportT]):
    """Report of a preview or check, with its messages."""

    key: PreviewKey
    report_type: type[ReportT]
    report: ReportT | None = None
    warnings: list[protocol.CodedEvent] = field(default_factory=list)
    error: protocol.Error | None = None
    phase: protocol.PhaseName | None = None
    progress: protocol.Progress | None = None

    def process(self, event: protocol.AnyEvent) -> None:
        """Process an event of the trainer."""
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
    """The newest successful results by configuration, and the last one shown."""

    def __init__(self) -> None:
        self._results: dict[PreviewKey, PreviewResult[ReportT]] = {}
        self._last_shown: PreviewResult[ReportT] | None = None

    @property
    def results(self) -> list[PreviewResult[ReportT]]:
        """All cached results, newest first."""
        return list(reversed(self._results.values()))

    def store(self, result: PreviewResult[ReportT]) -> None:
        """Store a result, replacing an earlier one of the same configuration."""
        self._results.pop(result.key, None)
        self._results[result.key] = self._last_shown = result
        if len(self._results) > _CAPACITY:
            del self._results[next(iter(self._results))]

    def invalidate(self, key: PreviewKey) -> None:
        """Remove the result of a configuration whose preview failed."""
        self._results.pop(key, None)
        self._last_shown = None

    def expire(self) -> None:
        """Remove all results after a change of the data's files. The last result shown remains, as an outdated one."""
        self._results.clear()

    def lookup(self, key: PreviewKey | None) -> tuple[PreviewResult[ReportT] | None, bool]:
        """The result of a configuration and True; without one, the last result shown and False."""
        if key is not None and key in self._results:
            self._last_shown = self._results[key]
            return self._last_shown, True
        return self._last_shown, False
