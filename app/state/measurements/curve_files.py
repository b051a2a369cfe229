"""The curves of a plot as a table of text, for spreadsheets."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.state.measurements.curves import Curve
from app.state.measurements.table import AXES, Column

_ROWS: Final = 500  # of one piece
_HEADS: Final = ("step", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Series:
    """One column: a curve in the plot's unit. `run`: whose it is, where there are several runs."""

    title: str
    curve: Curve
    scale: float = 1.0
    run: str = ""


def text(series: Sequence[Series], separator: str = ",") -> Iterator[str]:
    """The table in pieces, so that a long one need not be written at once: a head, then of each run its rows by time.

    Where a curve was not measured its field is empty. A million rows of three curves take some seconds.
    """
    runs = list(dict.fromkeys(one.run for one in series))
    titles = list(dict.fromkeys(one.title for one in series))
    head = [*(["run"] if len(runs) > 1 else []), *_HEADS, *titles]
    yield _lines([head], separator)
    for one in series:
        one.curve.y  # noqa: B018 - smoothed here, one at a time
        yield ""
    for run in runs:
        own = [one for one in series if one.run == run]
        for rows in _rows(own, titles):
            yield _lines([[run, *row] for row in rows] if len(runs) > 1 else rows, separator)


def _rows(series: Sequence[Series], titles: Sequence[str]) -> Iterator[list[list[str]]]:
    """Rows of one run: of all tables that its curves are from, by time, in pieces of the longest one."""
    tables = list({id(one.curve.table): one.curve.table for one in series}.values())
    times = [table.column("time") for table in tables]
    longest = max(range(len(tables)), key=lambda table: times[table].size)
    columns = [
        [(titles.index(one.title), one.curve.y, one.scale) for one in series if one.curve.table is table]
        for table in tables
    ]
    axes = [[table.column(axis) for axis in AXES] for table in tables]
    begins = [0] * len(tables)
    for end in [*range(_ROWS, times[longest].size, _ROWS), times[longest].size]:
        last = end == times[longest].size
        until = math.inf if last else float(times[longest][end - 1])
        ends = [int(np.searchsorted(time, until, side="right")) for time in times]
        if not last:
            ends[longest] = end
        places = [
            (float(times[table][row]), table, row)
            for table, (first, after) in enumerate(zip(begins, ends, strict=True))
            for row in range(first, after)
        ]
        begins = ends
        yield [
            made for _, table, row in sorted(places) if (made := _row(axes[table], columns[table], row, len(titles)))
        ]


def _row(axes: list[Column], columns: list[tuple[int, Column, float]], row: int, titles: int) -> list[str]:
    """One row of text; empty where none of the curves was measured."""
    fields = [""] * titles
    for place, y, scale in columns:
        fields[place] = _number(float(y[row]) * scale)
    if not any(fields):
        return []
    step, tokens, time = (float(axis[row]) for axis in axes)
    return [f"{step:.0f}", f"{tokens:.0f}", f"{time:.3f}", *fields]


def _number(value: float) -> str:
    return f"{value:.7g}" if value == value else ""


def _lines(rows: Sequence[Sequence[str]], separator: str) -> str:
    made = io.StringIO()
    csv.writer(made, delimiter=separator, lineterminator="\r\n").writerows(rows)
    return made.getvalue()
