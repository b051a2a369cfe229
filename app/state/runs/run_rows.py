"""The table of runs without its widgets: what a row is, in which order rows stand, and which a search finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from app.state.runs.run_notes import RunNotes
from trainer_core.runs.run_dir import RunSummary

Column = Literal["shown", "name", "state", "step", "loss", "speed", "time", "preset", "data", "started", "tags"]
COLUMNS: Final[tuple[Column, ...]] = get_args(Column)
Shelf = Literal["current", "archived", "all"]
SHELVES: Final[tuple[Shelf, ...]] = get_args(Shelf)
_DIGITS: Final = re.compile(r"(\d+)")
_STATES: Final = ("running", "interrupted", "failed", "stopped", "finished")


@dataclass(frozen=True, slots=True)
class Row:
    """A run and what is noted of it. `found_by`: all its words, folded, for the search; `data`: names of files."""

    run: RunSummary
    notes: RunNotes
    found_by: str = ""
    data: str = ""

    @property
    def path(self) -> Path:
        return self.run.path


def make_row(run: RunSummary, notes: RunNotes, state: str) -> Row:
    """`state`: its words in the language of the moment, which a search finds too."""
    data = " ".join(path if path.startswith("builtin:") else Path(path).name for path in run.data)
    said = (run.name, run.preset, data, *notes.tags, notes.note, state)
    return Row(run, notes, "\n".join(said).casefold(), data)


def on_shelf(row: Row, shelf: Shelf) -> bool:
    return shelf == "all" or row.notes.archived == (shelf == "archived")


def find(rows: Iterable[Row], text: str) -> list[Row]:
    """The rows in which every word of `text` stands somewhere."""
    wanted = text.casefold().split()
    return [row for row in rows if all(word in row.found_by for word in wanted)]


def arrange(rows: Iterable[Row], column: Column, *, descending: bool, shown: Iterable[Path] = ()) -> list[Row]:
    """In the order of a column. Runs without a value stand last in either direction; equal ones newest first."""
    key = _key(column, frozenset(shown))
    newest = sorted(rows, key=lambda row: row.run.started, reverse=True)
    keyed = [(key(row), row) for row in newest]
    known = [pair for pair in keyed if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + [row for value, row in keyed if value is None]


def _key(column: Column, shown: frozenset[Path]) -> Callable[[Row], Any]:
    keys: dict[Column, Callable[[Row], Any]] = {
        "shown": lambda row: row.path not in shown,
        "name": lambda row: natural(row.run.name),
        "state": lambda row: _STATES.index(row.run.state),
        "step": lambda row: row.run.step,
        "loss": lambda row: row.run.best_loss,
        "speed": lambda row: row.run.tokens_per_s,
        "time": lambda row: row.run.seconds or None,
        "preset": lambda row: natural(row.run.preset) if row.run.preset else None,
        "data": lambda row: natural(row.data) if row.data else None,
        "started": lambda row: row.run.started,
        "tags": lambda row: tuple(map(natural, row.notes.tags)) or None,
    }
    return keys[column]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key with which run 9 stands before run 10."""
    parts = _DIGITS.split(text.casefold())
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def known_tags(rows: Iterable[Row]) -> list[str]:
    """All tags in use, the most used first."""
    count: dict[str, int] = {}
    for row in rows:
        for tag in row.notes.tags:
            count[tag] = count.get(tag, 0) + 1
    return sorted(count, key=lambda tag: (-count[tag], natural(tag)))
