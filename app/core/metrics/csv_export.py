"""The curves of a plot as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.core.metrics.curves import Curve
from app.core.metrics.table import AXES, Array

_ROWS_PER_CHUNK: Final = 500
_AXIS_TITLES: Final = ("step", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A curve in the unit of its plot. `run`: the name of its run if there are several."""

    title: str
    curve: Curve
    scale: float = 1.0
    run: str = ""


def iter_csv(series: Sequence[CsvColumn], separator: str = ",") -> Iterator[str]:
    """Yields the header, then the rows of each run by time in chunks of 500. Unmeasured fields are empty."""
    runs = list(dict.fromkeys(column.run for column in series))
    titles = list(dict.fromkeys(column.title for column in series))
    yield _format([[*(["run"] if len(runs) > 1 else []), *_AXIS_TITLES, *titles]], separator)
    for run in runs:
        rows = _merge_tables([column for column in series if column.run == run], titles)
        for begin in range(0, len(rows), _ROWS_PER_CHUNK):
            chunk = [_format_row(row) for row in rows[begin : begin + _ROWS_PER_CHUNK].tolist()]
            yield _format([[run, *row] for row in chunk] if len(runs) > 1 else chunk, separator)


def _merge_tables(series: Sequence[CsvColumn], titles: Sequence[str]) -> Array:
    """(rows, axes + titles) by time, from all tables of one run; NaN where a table does not have the column."""
    parts = []
    for table in {id(column.curve.table): column.curve.table for column in series}.values():
        part = np.full((table.length, len(AXES) + len(titles)), np.nan)
        part[:, : len(AXES)] = np.stack([table.column(axis) for axis in AXES], axis=1)
        for column in series:
            if column.curve.table is table:
                part[:, len(AXES) + titles.index(column.title)] = column.scale * column.curve.y
        parts.append(part[np.isfinite(part[:, len(AXES) :]).any(axis=1)])
    merged = np.concatenate(parts)
    ordered: Array = merged[np.argsort(merged[:, AXES.index("time")], kind="stable")]
    return ordered


def _format_row(row: list[float]) -> list[str]:
    step, tokens, time, *values = row
    return [
        f"{step:.0f}", f"{tokens:.0f}", f"{time:.3f}",
        *("" if value != value else f"{value:.7g}" for value in values),
    ]  # fmt: skip


def _format(rows: Sequence[Sequence[str]], separator: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerows(rows)
    return text.getvalue()
