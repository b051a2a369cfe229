"""The curves of a plot as a table of text, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.state.curves import Curve
from app.state.table import AXES, Array

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
    for run in runs:
        own = [one for one in series if one.run == run]
        for rows in _rows(own, titles):
            yield _lines([[run, *row] for row in rows] if len(runs) > 1 else rows, separator)


def _rows(series: Sequence[Series], titles: Sequence[str]) -> Iterator[list[list[str]]]:
    """Rows of one run: of all tables that its curves are from, by time."""
    tables = list({id(one.curve.table): one.curve.table for one in series}.values())
    times: list[Array] = [table.column("time") for table in tables]
    which = np.repeat(np.arange(len(tables)), [time.size for time in times])
    row = np.concatenate([np.arange(time.size) for time in times]) if times else np.empty(0, int)
    order = np.argsort(np.concatenate(times), kind="stable") if times else row
    columns = [
        [(titles.index(one.title), one.curve.y, one.scale) for one in series if one.curve.table is table]
        for table in tables
    ]
    axes = [[table.column(axis) for axis in AXES] for table in tables]
    for begin in range(0, order.size, _ROWS):
        piece: list[list[str]] = []
        for place in order[begin : begin + _ROWS].tolist():
            table, at = int(which[place]), int(row[place])
            fields = [""] * len(titles)
            for column, y, scale in columns[table]:
                fields[column] = _number(float(y[at]) * scale)
            if any(fields):
                step, tokens, time = (float(axis[at]) for axis in axes[table])
                piece.append([f"{step:.0f}", f"{tokens:.0f}", f"{time:.3f}", *fields])
        yield piece


def _number(value: float) -> str:
    return f"{value:.7g}" if value == value else ""


def _lines(rows: Sequence[Sequence[str]], separator: str) -> str:
    made = io.StringIO()
    csv.writer(made, delimiter=separator, lineterminator="\r\n").writerows(rows)
    return made.getvalue()
