"""Search and order of the runs table. No Qt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, get_args

from app.core.history.run_list import RunRow

ArchiveFilter = Literal["current", "archived", "all"]
ARCHIVE_FILTERS: Final[tuple[ArchiveFilter, ...]] = get_args(ArchiveFilter)
_DIGITS: Final = re.compile(r"(\d+)")


def matches_archive_filter(row: RunRow, archive_filter: ArchiveFilter) -> bool:
    return archive_filter == "all" or row.notes.archived == (archive_filter == "archived")


def matches_search(row: RunRow, text: str, state_text: str) -> bool:
    """Whether the row contains every word of `text`. `state_text`: translated state of the run."""
    words = text.casefold().split()
    data = (path if path.startswith("builtin:") else Path(path).name for path in row.run.data)
    fields = (row.run.name, row.run.preset, *data, *row.notes.tags, row.notes.note, state_text)
    searched = "\n".join(fields).casefold()
    return all(word in searched for word in words)


def sort_rows(rows: Iterable[RunRow], key: Callable[[RunRow], Any], *, descending: bool) -> list[RunRow]:
    """Sort by `key`. In both directions, runs whose key is None are last and equal runs are newest first."""
    newest_first = sorted(rows, key=lambda row: row.run.started, reverse=True)
    values = [(key(row), row) for row in newest_first]
    known = sorted((pair for pair in values if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + [row for value, row in values if value is None]


def natural_sort_key(text: str) -> tuple[tuple[int, int, str], ...] | None:
    """A sort key that sorts "run 9" before "run 10"; None for an empty text."""
    parts = _DIGITS.split(text.casefold())
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part) or None
