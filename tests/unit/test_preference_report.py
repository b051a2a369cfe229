"""The data report of good and bad answers: counts, lengths, and both answers of the first rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_data import RecordingReporter, prepare_files
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.console.data_report import TerminalStyle, format_data_report
from trainer_core.data.report.report import preview, report_prepared_data

pytestmark = pytest.mark.usefixtures("home")

KNOBS: dict[str, Any] = {"vocab_size": 320, "max_seq_len": 64, "batch_size": 4, "objective": "dpo"}
ROWS = [{"prompt": f"第{n}题", "chosen": f"好 {n} " * 2, "rejected": f"bad {n}"} for n in range(100)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def preview_rows(path: Path, rows: list[dict[str, Any]], **knobs: Any) -> protocol.DataReport:
    config = Config(data=[str(write_rows(path, rows))], **{**KNOBS, "validation_fraction": 0.0, **knobs})
    return preview(config, RecordingReporter())


def counts_of(report: protocol.DataReport) -> protocol.PreferenceCounts:
    assert report.preference is not None
    return report.preference


def answers_of(sample: protocol.SampleView) -> list[tuple[bool, str]]:
    return [
        (answer.chosen, "".join(token.text for token in sample.tokens if token.document == place and token.in_loss))
        for place, answer in enumerate(sample.answers)
    ]


@pytest.mark.parametrize("packing", [False, True])
def test_a_complete_preview_equals_the_report_of_preparation(tmp_path: Path, packing: bool) -> None:
    path = write_rows(tmp_path / "a.jsonl", [*ROWS, {**ROWS[0], "rejected": ROWS[0]["chosen"]}])
    knobs = {**KNOBS, "packing": packing, "tokenizer": str(prepare_files(path, **KNOBS).tokenizer)}
    config = Config(data=[str(path)], **knobs)
    previewed = preview(config, RecordingReporter())
    prepared = report_prepared_data(prepare_files(path, **knobs), config)
    prepared.prepared = False  # the only difference
    assert previewed == prepared
    assert (previewed.packed_sequences is not None) == packing
    assert (counts_of(previewed).equal, previewed.read.documents, previewed.read.rows) == (1, 100, 101)
    assert sum(one.documents for one in previewed.lengths) == 200  # conversations


def test_answers_are_counted_with_their_mean_lengths(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "completion": "x" * (2 + n % 2), "label": n % 4 == 0} for n in range(40)]
    counts = counts_of(preview_rows(tmp_path / "a.jsonl", rows, objective="kto", vocab_size=300))
    assert (counts.sides, counts.chosen, counts.rejected) == (1, 10, 30)
    pairs = counts_of(preview_rows(tmp_path / "b.jsonl", ROWS))
    assert (pairs.sides, pairs.chosen, pairs.rejected, pairs.swapped) == (2, 100, 100, 0)
    assert pairs.chosen_tokens > pairs.rejected_tokens > 1


def test_the_mean_length_is_that_of_the_trained_tokens(tmp_path: Path) -> None:
    report = preview_rows(tmp_path / "a.jsonl", ROWS[:5])
    in_loss = [
        sum(token.in_loss and token.document == place for sample in report.samples for token in sample.tokens)
        for place in (0, 1)
    ]
    counts = counts_of(report)
    assert [counts.chosen_tokens, counts.rejected_tokens] == [count / 5 for count in in_loss]


def test_the_first_rows_are_shown_with_both_answers(tmp_path: Path) -> None:
    for packing in (False, True):
        report = preview_rows(tmp_path / "a.jsonl", ROWS, packing=packing)
        shown = {(sample.answers[0].chosen, *map(str, answers_of(sample))) for sample in report.samples}
        assert len(shown) == 5
        for sample in report.samples:
            (_, chosen), (is_good, rejected) = answers_of(sample)
            number = rejected.removeprefix("bad ").removesuffix("<|im_end|>")
            assert (chosen, is_good) == (f"好 {number} " * 2 + "<|im_end|>", False)
            assert sample.length == sum(answer.length for answer in sample.answers) == len(sample.tokens)
        assert protocol.decode_event(protocol.encode(report)) == report


def test_the_end_of_a_long_prompt_is_shown_before_the_answers(tmp_path: Path) -> None:
    prompt = "".join(chr(0x4E00 + 7 * n) for n in range(800))  # each character is rare: 3 tokens
    rows = [{"prompt": f"{prompt}{n}?", "chosen": "yes", "rejected": "no " * 900} for n in range(5)]
    sample = preview_rows(tmp_path / "a.jsonl", rows, max_seq_len=4096).samples[0]
    chosen, rejected = sample.answers
    assert chosen.skipped == rejected.skipped > 0
    assert answers_of(sample)[0][1] == "yes<|im_end|>"
    assert [sum(token.document == place for token in sample.tokens) for place in (0, 1)][1] == 512
    assert len([token for token in sample.tokens if token.document == 0]) == chosen.length - chosen.skipped < 120


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_shows_which_answer_is_chosen(tmp_path: Path, colour: bool) -> None:
    report = preview_rows(tmp_path / "a.jsonl", ROWS)
    lines = "\n".join(line.plain for line in format_data_report(report, TerminalStyle("zh", colour)))
    first = lines[lines.index("1. ") : lines.index("2. ")]
    assert first.index("--- 优选\n") < first.index("好 ") < first.index("--- 较差\n") < first.index("bad ")
    assert first.count("[[") == first.count("]]") == (0 if colour else 2)
    assert "优选回答" in lines
    report.samples[0].answers[1].skipped = 7
    lines = "\n".join(line.plain for line in format_data_report(report, TerminalStyle("zh", colour)))
    assert "--- 优选\n<|im_start|>" in lines
    assert "--- 较差\n… <|im_start|>" in lines
