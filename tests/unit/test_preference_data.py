"""Preparation of good and bad answers: tokens, trained spans, and what is left out, from real files."""

from __future__ import annotations

import contextlib
import csv
import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.prepared_data import RecordingReporter, decode_split, prepare_files, read_files
from tests.unit.random_conversations import WORDS
from trainer_core.config import Config
from trainer_core.data import encoder, uncached
from trainer_core.data.prepare import PreparedData
from trainer_core.data.token_files import divide_spans
from trainer_core.evaluation.rows import select_rows
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

Row = dict[str, Any]
Side = tuple[int, str, list[str]]  # 1 or -1, the text, and its trained parts


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def prepare_rows(path: Path, rows: Sequence[Row], objective: str = "dpo", **knobs: Any) -> PreparedData:
    return prepare_files(write_jsonl(path, rows), **{"objective": objective, "validation_fraction": 0.0, **knobs})


def read_sides(result: PreparedData, split: str = "train") -> list[list[Side]]:
    """The conversations of each document, decoded."""
    data, codec = result.open_split(split), result.load_codec()
    found = []
    for document in range(data.documents):
        start, end = data.offsets[document : document + 2].tolist()
        first, last = data.span_offsets[document : document + 2].tolist()
        sides = []
        for side, begin, stop, spans in divide_spans(data.spans[first:last].tolist(), end - start):
            ids = data.read(start + begin, start + stop).tolist()
            trained = [codec.decode(ids[a:b], skip_special_tokens=False) for a, b in spans]
            sides.append((side, codec.decode(ids, skip_special_tokens=False), trained))
        found.append(sides)
    data.close()
    return found


def chatml(turns: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"<|im_start|>{role}\n{content}<|im_end|>" for role, content in turns)


# --- formats ---------------------------------------------------------------------------------------


ROWS = [{"prompt": f"第{i}题：1 + {i}?", "chosen": f"是 {i + 1}。", "rejected": f"No idea, {i}"} for i in range(20)]


def as_messages(row: Row) -> Row:
    ask = {"role": "user", "content": row["prompt"]}
    return {name: [ask, {"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: v if isinstance(v, str) else json.dumps(v) for name, v in row.items()} for row in rows)
    return path


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=7)
    return path


@pytest.mark.parametrize("has_messages", [False, True])
@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_parquet])
def test_every_file_format_gives_both_conversations_of_each_row(tmp_path: Path, write: Any, has_messages: bool) -> None:
    folder = tmp_path / "偏好 数据"
    folder.mkdir()
    suffix = write.__name__.removeprefix("write_")
    path = write(folder / f"数据.{suffix}", [as_messages(row) for row in ROWS] if has_messages else ROWS)
    result = prepare_files(path, objective="dpo", validation_fraction=0.0)
    assert (result.task, result.sides, result.train.documents) == ("preference", 2, len(ROWS))
    assert read_sides(result) == [
        [
            (side, chatml([("user", row["prompt"]), ("assistant", row[name])]), [f"{row[name]}<|im_end|>"])
            for side, name in ((1, "chosen"), (-1, "rejected"))
        ]
        for row in ROWS
    ]


def test_labelled_answers_have_one_conversation_each(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "completion": f"a{i}", "label": i % 3 == 0} for i in range(12)]
    result = prepare_rows(tmp_path / "kto.jsonl", rows, "kto")
    assert (result.sides, result.sequence_len) == (1, 32)
    assert read_sides(result) == [
        [(1 if row["label"] else -1, chatml([("user", row["prompt"]), ("assistant", row["completion"])]),
          [f"{row['completion']}<|im_end|>"])]
        for row in rows
    ]  # fmt: skip


def test_pairs_are_also_data_for_kto(tmp_path: Path) -> None:
    pairs = prepare_rows(tmp_path / "pairs.jsonl", ROWS, "kto")
    assert (pairs.sides, pairs.folder) == (2, prepare_rows(tmp_path / "pairs.jsonl", ROWS).folder)


@st.composite
def random_rows(draw: st.DrawFn) -> list[tuple[Row, list[list[tuple[str, str]]], int]]:
    """Rows of several forms with both conversations, and the number of turns that are their prompt."""
    rng = random.Random(draw(st.integers(0, 2**32)))

    def text() -> str:
        words = "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))
        return unicodedata.normalize("NFC", words if words.strip() else "x")  # as the tokenizer does

    rows = []
    for number in range(12):
        prompt = [("system", text())] if rng.random() < 0.3 else []
        prompt += [(("user", "assistant")[place % 2], text()) for place in range(rng.choice((1, 1, 3)))]
        answers = [[("assistant", f"{side}{number} {text()}")] for side in "ab"]
        if rng.random() < 0.3:
            answers[rng.randrange(2)] += [("user", text()), ("assistant", text())]
        as_json = [[{"role": role, "content": content} for role, content in one] for one in (prompt, *answers)]
        whole = [[*prompt, *one] for one in answers]
        row = {"messages": as_json[0], "chosen": as_json[1], "rejected": as_json[2]}
        if rng.random() < 0.5:
            row = {name: as_json[0] + row[name] for name in ("chosen", "rejected")}
        rows.append((row, whole, len(prompt)))
    return rows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    return prepare_rows(folder / "a.jsonl", ROWS, cache_dir=str(folder)).tokenizer


@given(rows=random_rows())
@settings(max_examples=25, deadline=None)
def test_the_cache_holds_both_renderings_and_trains_on_exactly_what_differs(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    rows: list[tuple[Row, list[list[tuple[str, str]]], int]],
) -> None:
    folder = tmp_path_factory.mktemp("random")
    knobs = {"cache_dir": str(folder / "cache"), "tokenizer": str(tokenizer), "max_seq_len": 1024}
    result = prepare_rows(folder / "a.jsonl", [row for row, _, _ in rows], **knobs)
    assert read_sides(result) == [
        [
            (side, chatml(turns), [f"{content}<|im_end|>" for role, content in turns[shared:] if role == "assistant"])
            for side, turns in zip((1, -1), conversations, strict=True)
        ]
        for _, conversations, shared in rows
    ]


# --- rows that are left out ------------------------------------------------------------------------


def test_equal_pairs_are_counted_and_left_out(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    rows = [*ROWS, {"prompt": "same", "chosen": "twice", "rejected": "twice"}]
    result = prepare_rows(tmp_path / "a.jsonl", rows, reporter=reporter)
    assert (result.train.documents, result.report["rows"], reporter.warnings["data.pairs_equal"]) == (
        20,
        21,
        {"count": 1},
    )
    with pytest.raises(TraindeckError) as caught:
        prepare_rows(tmp_path / "b.jsonl", rows[-1:])
    assert caught.value.code == "data.pairs_equal"


def test_a_resumed_preparation_finds_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_BATCH_CHARS", 512)
    monkeypatch.setattr(encoder, "_COMMIT_INTERVAL_S", 0.0)
    rows = [{**row, "prompt": f"{row['prompt']}{n}"} for n in range(6) for row in ROWS]
    rows = [row if n % 10 else {**row, "chosen": row["rejected"]} for n, row in enumerate(rows)]
    expected = prepare_rows(tmp_path / "a.jsonl", rows, cache_dir=str(tmp_path / "whole"))
    stops, polls, result = 0, 1, None
    while result is None:
        polls += 2
        with contextlib.suppress(StopRequested):
            result = prepare_rows(tmp_path / "a.jsonl", rows, reporter=RecordingReporter(stop_at=polls))
        stops += result is None
    assert stops > 2
    assert (result.report, result.report["equal_pairs"]) == (expected.report, 12)
    assert read_files(result.folder) == read_files(expected.folder)


def test_pairs_that_contradict_another_are_counted(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    swapped = [{"prompt": row["prompt"], "chosen": row["rejected"], "rejected": row["chosen"]} for row in ROWS[:3]]
    result = prepare_rows(tmp_path / "a.jsonl", [*ROWS, *swapped, ROWS[4]], reporter=reporter, validation_fraction=0.3)
    assert reporter.warnings["data.pairs_swapped"] == {"count": 6, "total": 24}
    assert result.report["duplicates"] == 1


def test_an_answer_with_both_labels_contradicts_itself(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    rows = [{"prompt": "q", "completion": f"a{i % 9}", "label": i // 9} for i in range(10)]
    prepare_rows(tmp_path / "a.jsonl", rows, "kto", reporter=reporter)
    assert reporter.warnings["data.pairs_swapped"]["count"] == 2


def test_a_refused_or_bad_side_makes_the_row_bad(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    tokenizer = str(prepare_rows(tmp_path / "tokenizer.jsonl", ROWS).tokenizer)
    rows = [*ROWS[:9], {"prompt": "p", "chosen": "a", "rejected": ""}, *ROWS[9:]]
    rows.append({"prompt": "p", "chosen": "a", "rejected": "x" * 5_000_000})
    result = prepare_rows(tmp_path / "a.jsonl", rows, reporter=reporter, tokenizer=tokenizer)
    assert (result.train.documents, result.report["bad"]) == (20, 2)
    assert len(read_sides(result)) == 20
    assert str(reporter.warnings["data.rows_skipped"]["reason"]).startswith("it is longer than 4 million characters")


def test_pairs_without_a_difference_after_truncation_are_dropped(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    start = "same words " * 40
    rows = [
        *ROWS,
        {"prompt": "late", "chosen": f"{start}yes", "rejected": f"{start}no"},  # both cut before they differ
        {"prompt": "one", "chosen": f"{start}yes", "rejected": "no"},  # differ in the first word
        {"prompt": "long " * 60, "chosen": "yes", "rejected": "no"},  # no answer left
    ]
    result = prepare_rows(tmp_path / "a.jsonl", rows, reporter=reporter, max_seq_len=48)
    assert reporter.warnings["data.pairs_dropped"] == {"count": 2, "total": 23, "limit": 48}
    assert (result.train.samples, result.truncated, result.sequence_len) == (21, 1, 96)


@pytest.mark.parametrize(("objective", "code"), [("likelihood", "data.preferences"), ("kto", ""), ("dpo", "")])
def test_preferences_need_an_objective(tmp_path: Path, objective: str, code: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        write_jsonl(folder / f"{name}.jsonl", ROWS)
    if not code:
        assert prepare_files(folder, objective=objective).task == "preference"
        return
    with pytest.raises(TraindeckError) as caught:
        prepare_files(folder, objective=objective)
    assert (caught.value.code, caught.value.params["found"]) == (code, "prompt, chosen, rejected")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "builtin:tasks"])
def test_an_objective_that_needs_preferences_refuses_other_data(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("plain text", encoding="utf-8")
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "response": "r"}])
    with pytest.raises(TraindeckError) as caught:
        prepare_files(Path(name) if ":" in name else tmp_path / name, objective="dpo")
    assert (caught.value.code, caught.value.params["wanted"]) == ("data.no_preferences", "chosen")


# --- other uses of the data ------------------------------------------------------------------------


def test_held_out_conversations_are_the_chosen_ones(tmp_path: Path) -> None:
    result = prepare_rows(tmp_path / "a.jsonl", ROWS, validation_fraction=0.2)
    answers = {turns[-1][1] for turns in result.held_out_chats(10)}
    assert len(answers) == result.validation.documents == 4
    assert answers <= {row["chosen"] for row in ROWS}
    rows = [{"prompt": f"q{i}", "completion": f"a{i}", "label": i % 2} for i in range(40)]
    labelled = prepare_rows(tmp_path / "b.jsonl", rows, "kto", validation_fraction=0.2)
    good = {row["completion"] for row in rows if row["label"]}
    assert {turns[-1][1] for turns in labelled.held_out_chats(40)} <= good


def test_an_evaluation_compares_with_the_chosen_answers(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "completion": f"a{i}", "label": i % 2} for i in range(40)]
    good = {f"a{i}" for i in range(1, 40, 2)}
    for name, data, expected in (("a", ROWS, {row["chosen"] for row in ROWS}), ("b", rows, good)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", data)
        task, documents, _ = select_rows(Config(data=[str(path)], objective="kto"), 0, True, RecordingReporter())
        assert (task, {document.turns[-1][1] for document in documents}) == ("sft", expected)


def test_pairs_that_are_encoded_on_the_fly_equal_those_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncached, "_RUN_TOKENS", 300)
    equal = {"prompt": "same", "chosen": "twice", "rejected": "twice"}
    path = write_parquet(tmp_path / "a.parquet", [*ROWS[:9], equal, *ROWS[9:], {**equal, "rejected": ""}])
    cached, on_the_fly = (prepare_files(path, objective="dpo", token_cache=kept) for kept in (True, False))
    assert decode_split(cached, "train") == decode_split(on_the_fly, "train")
    assert read_sides(cached) == read_sides(on_the_fly)
    assert np.array_equal(cached.open_split("train").spans, on_the_fly.open_split("train").spans)
