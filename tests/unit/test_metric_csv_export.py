"""CSV export of curves."""

from __future__ import annotations

import csv
import io

import numpy as np

from app.core.metrics.csv_export import CsvColumn, iter_csv
from app.core.metrics.curves import Curve
from app.core.metrics.table import MetricTable


def table(name: str, steps: list[int], values: list[float], *, late: float = 0.0) -> MetricTable:
    rows, x = MetricTable([name]), np.array(steps, dtype=float)
    rows.extend([x, 10 * x, x + late, np.array(values)])
    return rows


def rows(series: list[CsvColumn], separator: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(iter_csv(series, separator))), delimiter=separator))


def test_rows_of_different_tables_are_merged_by_time() -> None:
    train = table("loss", [1, 2, 3], [3.0, np.nan, 1.0])
    held_out = table("eval", [2, 3], [2.5, 1.5], late=0.25)
    found = rows([CsvColumn("train", Curve(train, "loss")), CsvColumn("eval, 评估", Curve(held_out, "eval"), 2.0)])
    assert [list(row.values()) for row in found] == [
        ["1", "10", "1.000", "3", ""],
        ["2", "20", "2.250", "", "5"],
        ["3", "30", "3.000", "1", ""],
        ["3", "30", "3.250", "", "3"],
    ]


def test_a_long_curve_is_exported_in_chunks() -> None:
    steps = list(range(1, 1702))
    long, short = (
        table("loss", steps, [float(step) for step in steps]),
        table("eval", [1, 500, 1701, 1800], [1, 2, 3, 4]),
    )
    series = [CsvColumn("train", Curve(long, "loss")), CsvColumn("eval", Curve(short, "eval"))]
    assert len([piece for piece in iter_csv(series) if piece.count("\r\n") > 1]) == 4
    found = rows(series)
    assert [int(row["step"]) for row in found if row["train"]] == steps
    assert [int(row["step"]) for row in found if row["eval"]] == [1, 500, 1701, 1800]


def test_several_runs_share_columns_and_have_a_run_column() -> None:
    series = [
        CsvColumn("speed", Curve(table("y", [1, 2], [5.0, 6.0]), "y"), run="a"),
        CsvColumn("speed", Curve(table("y", [1], [7.0]), "y"), run="b"),
    ]
    found = rows(series, "\t")
    assert [(row["run"], row["step"], row["speed"]) for row in found] == [
        ("a", "1", "5"),
        ("a", "2", "6"),
        ("b", "1", "7"),
    ]


def test_an_empty_curve_has_a_header_only() -> None:
    assert "".join(iter_csv([CsvColumn("loss", Curve(MetricTable(["y"]), "y"))])) == "step,tokens,seconds,loss\r\n"
