"""The curves of a plot as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from app.core.metrics.metric_table import Array


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A curve of `run`, which is empty if there is only one. `axes`: step, tokens and time of each value."""

    title: str
    axes: tuple[Array, ...]
    y: Array
    scale: float = 1.0  # from `y` to the unit of the plot
    run: str = ""


def encode_csv(columns: Sequence[CsvColumn], delimiter: str = ",") -> bytes:
    """Encode the rows of each run by time, in UTF-8. Unmeasured fields are empty. A long run takes seconds, in which
    other threads run."""
    import pyarrow as pa
    from pyarrow import csv

    parts: list[dict[str, Any]] = []  # curves of the same rows
    for column in columns:
        step, tokens, seconds = column.axes[0], column.axes[1], np.round(column.axes[2], 3)
        part = next((p for p in parts if p["run"] == column.run and np.array_equal(p["seconds"], seconds)), None)
        if part is None:
            whole = {"step": step.astype(np.int64), "tokens": tokens.astype(np.int64)}
            part = {"run": column.run, **whole, "seconds": seconds}
            parts.append(part)
        part[column.title] = pa.array((column.scale * column.y).astype(np.float32), from_pandas=True)  # NaN is null
    tables = [pa.table({**part, "run": pa.array([part["run"]] * len(part["step"]), pa.string())}) for part in parts]
    several = len({column.run for column in columns}) > 1
    names = [*(["run"] if several else []), "step", "tokens", "seconds", *dict.fromkeys(c.title for c in columns)]
    table = pa.concat_tables(tables, promote_options="default").sort_by(
        [("run", "ascending"), ("seconds", "ascending")]
    )
    content = BytesIO()
    csv.write_csv(table.select(names), content, csv.WriteOptions(delimiter=delimiter, quoting_style="needed"))
    return content.getvalue()
