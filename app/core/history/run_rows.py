"""Rows of the runs table: sorting, filtering and search. No Qt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from app.core.history.run_notes import RunNotes
from trainer_core.runs.run_dir import RunSummary

RunColumn = Literal["shown", "name", "state", "step", "loss", "speed", "time", "preset", "data", "started", "tags"]
RUN_COLUMNS: Final[tuple[RunColumn, ...]] = get_args(RunColumn)
ArchiveFilter = Literal["current", "archived", "all"]
ARCHIVE_FILTERS: Final[tuple[ArchiveFilter, ...]] = get_args(ArchiveFilter)
_DIGITS: Final = re.compile(r"(\d+)")
_STATE_ORDER: Final = ("running", "interrupted", "failed", "stopped", "finished")


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and its notes."""

    run: RunSummary
    notes: RunNotes

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def data(self) -> str:
        """File names of the training data."""
        return " ".join(path if path.startswith("builtin:") else Path(path).name for path in self.run.data)


def matches_archive_filter(row: RunRow, archive_filter: ArchiveFilter) -> bool:
    return archive_filter == "all" or row.notes.archived == (archive_filter == "archived")


def matches_search(row: RunRow, text: str, state_text: str) -> bool:
    """Whether the row contains every word of `text`. `state_text`: translated state of the run."""
    words = text.casefold().split()
    fields = (row.run.name, row.run.preset, row.data, *row.notes.tags, row.notes.note, state_text)
    searched = "\n".join(fields).casefold()
    return all(word in searched for word in words)


def sort_rows(
    rows: Iterable[RunRow], column: RunColumn, *, descending: bool, overlays: Collection[Path] = ()
) -> list[RunRow]:
    """Sort by a column. In both directions, runs without a value are last and equal runs are newest first."""
    newest_first = sorted(rows, key=lambda row: row.run.started, reverse=True)
    values = [(_sort_value(row, column, overlays), row) for row in newest_first]
    known = sorted((pair for pair in values if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + [row for value, row in values if value is None]


def _sort_value(row: RunRow, column: RunColumn, overlays: Collection[Path]) -> Any:
    run = row.run
    match column:
        case "shown":
            return row.path not in overlays
        case "name":
            return natural_sort_key(run.name)
        case "state":
            return _STATE_ORDER.index(run.state)
        case "step":
            return run.step
        case "loss":
            return run.best_loss
        case "speed":
            return run.tokens_per_s
        case "time":
            return run.seconds or None
        case "preset":
            return natural_sort_key(run.preset) or None
        case "data":
            return natural_sort_key(row.data) or None
        case "started":
            return run.started
        case "tags":
            return tuple(map(natural_sort_key, row.notes.tags)) or None


def natural_sort_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that sorts "run 9" before "run 10"."""
    parts = _DIGITS.split(text.casefold())
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def tags_by_frequency(rows: Iterable[RunRow]) -> list[str]:
    """All tags in use, most frequent first."""
    count = Counter(tag for row in rows for tag in row.notes.tags)
    return sorted(count, key=lambda tag: (-count[tag], natural_sort_key(tag)))
