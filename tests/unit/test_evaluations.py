"""Evaluations of a run: flags of the command, files of results, filters of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.core import evaluations
from app.core.evaluations import FILTERS, EvaluationOptions, list_evaluations, read_row, read_rows
from trainer_core import protocol
from trainer_core.protocol import Evaluation, ModelScores


def answer(text: str, right: bool, **values: Any) -> dict[str, Any]:
    return {"loss": 1.0, "tokens": 2, "answer": text, "exact_match": right, **values}


def line(number: int, base: dict[str, Any], tuned: dict[str, Any]) -> str:
    prompt = [{"role": "system", "content": "简短"}, {"role": "user", "content": f"{number} 加 1？"}]
    return json.dumps({"row": number, "prompt": prompt, "reference": "x", "models": {"base": base, "tuned": tuned}})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_options_become_flags_of_the_command() -> None:
    compared = EvaluationOptions("D:/资料/q.jsonl", 0, "regex:^a b$", compare=True, system="Be short.", examples=2)
    assert compared.arguments() == [
        "--rows", "0", "--data", "D:/资料/q.jsonl", "--judge", "regex:^a b$", "--compare", "--examples", "2",
        "--system", "Be short.",
    ]  # fmt: skip
    assert EvaluationOptions(rows=5, system="ignored", examples=2).arguments() == ["--rows", "5"]


def test_filters_select_rows_by_answers_and_correctness(tmp_path: Path) -> None:
    lines = [
        line(0, answer("x", True), answer("x", True)),
        line(1, answer("x", True), answer("y", False)),
        line(2, answer("z", False), answer("x", True)),
        line(3, answer("z", False), answer("z", False)),
        line(4, answer("z", False, judged=True), answer("y", True, judged=False)),  # the judge decides
    ]
    rows = read_rows(write(tmp_path / "行.jsonl", *lines))
    numbers = {name: [row.number for row in rows if accepts(row)] for name, accepts in FILTERS.items()}
    assert numbers == {"differ": [1, 2, 4], "wrong": [1, 3, 4], "worse": [1, 4], "all": [0, 1, 2, 3, 4]}


def test_long_texts_are_shortened_until_the_row_is_read_alone(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        line(0, answer("a", False), answer("b", False)),
        "damaged",
        line(1, answer("长" * 5000, False), answer("c", True)),
    )
    rows = read_rows(path)
    assert [row.number for row in rows] == [0, 1]
    assert len(rows[1].first.text) == 240
    assert rows[1].prompt == "1 加 1？"
    whole = read_row(path, rows[1].offset)
    assert whole is not None
    assert whole.first.text == "长" * 5000
    assert whole.prompt == "system: 简短\n\nuser: 1 加 1？"


def test_only_the_first_rows_of_a_large_file_are_read(tmp_path: Path) -> None:
    lines = [line(number, answer("a", False), answer("b", False)) for number in range(evaluations.MAX_ROWS + 10)]
    rows = read_rows(write(tmp_path / "r.jsonl", *lines))
    assert len(rows) == evaluations.MAX_ROWS


def test_evaluations_are_listed_newest_first_without_damaged_ones(tmp_path: Path) -> None:
    folder = tmp_path / "evaluations"
    folder.mkdir()
    for name in ("20260101-000000", "20260102-000000"):
        event = Evaluation(t=1.0, task="sft", rows=1, main_score="exact_match", scores=[ModelScores(name="model")])
        (folder / f"{name}.summary.json").write_bytes(protocol.encode(event))
    (folder / "20260103-000000.summary.json").write_bytes(b"{")
    assert [path.name for path, _ in list_evaluations(tmp_path)] == ["20260102-000000.jsonl", "20260101-000000.jsonl"]
    assert list_evaluations(tmp_path / "missing") == []
