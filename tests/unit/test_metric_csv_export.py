"""CSV export of curves."""

from __future__ import annotations

import csv
import io

import numpy as np

from app.core.metrics.csv_export import CsvColumn, encode_csv


def column(
    title: str, steps: list[int], values: list[float], *, delay_s: float = 0.0, scale: float = 1.0, run: str = ""
) -> CsvColumn:
    x = np.array(steps, dtype=float)
    return CsvColumn(title, (x, 10 * x, x + delay_s), np.array(values), scale, run)


def export_rows(columns: list[CsvColumn], delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(encode_csv(columns, delimiter).decode()), delimiter=delimiter))


def test_rows_of_different_series_are_merged_by_time() -> None:
    train = column("train", [1, 2, 3], [3.0, np.nan, 1 / 3])
    exported = export_rows([train, column("eval, 评估", [2, 3], [2.5, 1.5], delay_s=0.25, scale=2.0)])
    assert list(exported[0]) == ["step", "tokens", "seconds", "train", "eval, 评估"]
    assert [list(row.values()) for row in exported] == [
        ["1", "10", "1", "3", ""],
        ["2", "20", "2", "", ""],
        ["2", "20", "2.25", "", "5"],
        ["3", "30", "3", "0.33333334", ""],
        ["3", "30", "3.25", "", "3"],
    ]


def test_series_with_equal_steps_share_rows() -> None:
    columns = [column(title, [1, 2], [3.0, y], delay_s=1 / 3) for title, y in (("raw", 2.0), ("smooth", 2.5))]
    exported = export_rows(columns)
    assert [(row["raw"], row["smooth"]) for row in exported] == [("3", "3"), ("2", "2.5")]


def test_several_runs_share_columns_and_have_a_run_column() -> None:
    columns = [column("speed", [1, 2], [5.0, 6.0], run="a"), column("speed", [1], [7.0], run="b")]
    exported = export_rows(columns, "\t")
    assert [(row["run"], row["step"], row["speed"]) for row in exported] == [
        ("a", "1", "5"),
        ("a", "2", "6"),
        ("b", "1", "7"),
    ]
