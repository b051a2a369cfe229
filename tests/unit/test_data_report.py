"""Data reports: equality of preview and preparation, estimates for large data, no remaining files."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_data import RecordingReporter, prepare_files
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.prepare import prepare
from trainer_core.data.report.report import preview, report_prepared_data, warn_about_duplicates
from trainer_core.data.tokenizing import bpe
from trainer_core.messages import TraindeckError, format_message
from trainer_core.progress import StopRequested

pytestmark = pytest.mark.usefixtures("home")

KNOBS: dict[str, Any] = {"vocab_size": 320, "max_seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 3}
PAIRS = [
    {"prompt": f"What is {n} plus {n}?", "response": f"{2 * n}，也就是{n}加{n}。" * (1 + n % 5)} for n in range(300)
]


@pytest.fixture(autouse=True)
def no_temporary_files_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert list(temporary.iterdir()) == []


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def config_of(*data: Path, **knobs: Any) -> Config:
    return Config(data=[str(path) for path in data], **{**KNOBS, **knobs})


def text_of(sample: protocol.SampleView, *, in_loss: bool | None = None) -> str:
    return "".join(token.text for token in sample.tokens if in_loss is None or token.in_loss == in_loss)


def write_novel(folder: Path, lines: int = 800) -> Path:
    path = folder / "小说 novel.txt"
    path.write_text("".join(f"第{n}行：春眠不觉晓，{n * 7919}。 Line {n} 🙂\n" for n in range(lines)), encoding="utf-8")
    return path


def write_tables(folder: Path) -> dict[str, Path]:
    """Write tables of every kind with 300 rows each."""
    alpaca = [
        {"instruction": row["prompt"], "input": "以及" * (n % 3), "output": row["response"]}
        for n, row in enumerate(PAIRS)
    ]
    chats = [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": row["response"]},
                {"role": "user", "content": "真的吗？"},
                {"role": "assistant", "content": "Yes."},
            ]
        }
        for row in PAIRS
    ]
    texts = [{"text": row["response"]} for row in PAIRS]
    kinds = {"pairs": PAIRS, "alpaca": alpaca, "chats": chats, "texts": texts}
    return {kind: write_jsonl(folder / f"{kind}.jsonl", rows) for kind, rows in kinds.items()}


# --- preview and preparation ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["novel", "texts", "pairs", "alpaca", "chats"])
@pytest.mark.parametrize("packing", [False, True])
def test_a_complete_preview_equals_the_report_of_preparation(tmp_path: Path, kind: str, packing: bool) -> None:
    data = write_novel(tmp_path) if kind == "novel" else write_tables(tmp_path)[kind]
    tokenizer = str(prepare_files(data, **KNOBS).tokenizer)
    config = config_of(data, tokenizer=tokenizer, packing=packing)
    previewed = preview(config, RecordingReporter())
    prepared = report_prepared_data(
        prepare_files(data, **{**KNOBS, "tokenizer": tokenizer, "packing": packing}), config
    )
    assert (prepared.prepared, previewed.prepared) == (True, False)
    prepared.prepared = False  # the only difference
    assert previewed.complete
    assert previewed == prepared
    assert previewed.read == previewed.total
    assert sum(b.documents for b in previewed.lengths) == previewed.read.documents
    assert previewed.train_tokens + previewed.validation_tokens == previewed.read.tokens
    assert previewed.train_documents + previewed.validation_documents == previewed.read.documents


def test_the_number_of_steps_follows_from_the_number_of_samples(tmp_path: Path) -> None:
    report = preview(
        config_of(write_tables(tmp_path)["pairs"], max_epochs=3, validation_fraction=0.0), RecordingReporter()
    )
    assert report.samples_per_epoch == 300 - report.dropped
    assert report.samples_per_step == 12
    assert report.full_steps_per_epoch == report.samples_per_epoch // 12
    assert report.steps_per_epoch == -(-report.samples_per_epoch // 12)
    assert report.total_steps == 3 * report.steps_per_epoch
    assert preview(config_of(write_tables(tmp_path)["pairs"], max_steps=7), RecordingReporter()).total_steps == 7


@pytest.mark.parametrize("files", [1, 5])
def test_a_twentieth_of_the_tokens_of_few_long_texts_is_held_out(tmp_path: Path, files: int) -> None:
    for number in range(files):
        (tmp_path / str(number)).mkdir()
        write_novel(tmp_path / str(number), lines=6000)
    report = preview(config_of(*(tmp_path / str(number) for number in range(files))), RecordingReporter())
    assert report.splits_documents
    assert 0.03 < report.validation_tokens / report.total.tokens < 0.07
    table = preview(config_of(write_tables(tmp_path)["texts"]), RecordingReporter())
    assert not table.splits_documents
    assert (table.train_documents, table.validation_documents) == (285, 15)


def test_a_default_batch_size_is_marked(tmp_path: Path) -> None:
    data = [str(write_tables(tmp_path)["pairs"])]
    for knobs, default in (({}, True), ({"preset": "cpu"}, False), ({"batch_size": 3}, False)):
        report = preview(Config(data=data, vocab_size=320, **knobs), RecordingReporter())
        assert report.batch_is_default is default


# --- contents of a report -----------------------------------------------------------------------------


def test_columns_are_reported_with_their_roles(tmp_path: Path) -> None:
    sources = {
        kind: preview(config_of(path), RecordingReporter()).sources[0] for kind, path in write_tables(tmp_path).items()
    }
    assert sources["alpaca"].column_roles == {"prompt": "instruction", "input": "input", "response": "output"}
    assert sources["alpaca"].all_columns == ["instruction", "input", "output"]
    assert sources["chats"].column_roles == {"messages": "messages"}
    assert sources["texts"].column_roles == {"text": "text"}
    assert sources["pairs"].columns == ["prompt", "response"]
    assert (sources["pairs"].format, sources["pairs"].encoding) == ("jsonl", "utf-8")


def test_bad_empty_and_duplicate_rows_are_counted(tmp_path: Path) -> None:
    rows = [{"text": f"row {n % 80}"} for n in range(100)]
    data = write_jsonl(tmp_path / "mixed.jsonl", [*rows[:40], "{broken", {"text": ""}, {"other": 1}, *rows[40:]])
    reporter = RecordingReporter()
    report = preview(config_of(data), reporter)
    assert (report.read.rows, report.bad, report.empty, report.duplicates) == (100, 2, 1, 20)
    assert report.first_bad is not None
    assert (report.first_bad.path, report.first_bad.position) == (str(data), "line 41")
    assert reporter.warnings["data.rows_skipped"]["count"] == 2
    warn_about_duplicates(report, reporter)
    assert reporter.warnings["data.duplicates"] == {"count": 20, "total": 100}


@pytest.mark.parametrize("knobs", [{"on_bad_row": "stop"}, {"bad_row_limit": 1}])
def test_a_preview_stops_at_the_same_bad_row_as_preparation(tmp_path: Path, knobs: dict[str, Any]) -> None:
    data = write_jsonl(tmp_path / "bad.jsonl", [*PAIRS, "{broken", "{again"])
    errors = []
    for run in (preview, prepare):
        with pytest.raises(TraindeckError) as caught:
            run(config_of(data, **knobs), RecordingReporter())
        errors.append((caught.value.code, caught.value.params))
    assert errors[0] == errors[1]
    assert errors[0][1]["position"] == "line 301"


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_too_many_bad_rows_in_a_sampled_file_are_an_error(tmp_path: Path, share: float) -> None:
    rows = [{"text": f"{n} " * 60} for n in range(12_000)]
    data = write_jsonl(
        tmp_path / "long.jsonl", ["{broken" if n % 100 < 100 * share else row for n, row in enumerate(rows)]
    )
    with pytest.raises(TraindeckError) as caught:
        preview(config_of(data, bad_row_limit=150), RecordingReporter(), budget=1024 * 1024)
    assert caught.value.code == ("data.too_many_bad_rows" if share < 0.5 else "data.bad_format")
    assert caught.value.params["path"] == str(data)


def test_encoding_and_undecodable_bytes_are_reported(tmp_path: Path) -> None:
    data = tmp_path / "旧 old.txt"
    data.write_bytes("床前明月光，疑是地上霜。\n".encode("gb18030") * 300 + b"\xff\xff\n")
    reporter = RecordingReporter()
    report = preview(config_of(data), reporter)
    assert report.sources[0].encoding == "gb18030"
    assert report.undecodable == 2
    assert reporter.warnings["data.undecodable"]["count"] == 2


def test_formats_and_encodings_of_a_mixed_folder_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "novels"
    folder.mkdir()
    for name, encoding in {"a": "utf-8-sig", "b": "gb18030", "c": "utf-16", "d": "gb18030"}.items():
        (folder / f"{name}.txt").write_bytes("床前明月光，疑是地上霜。\n".encode(encoding) * 50)
    write_jsonl(folder / "e.jsonl", [{"text": "春眠不觉晓"}])
    (source,) = preview(config_of(folder), RecordingReporter()).sources
    assert (source.format, source.compression) == ("text ×4, jsonl", "")
    assert source.encoding == "gb18030 ×2, utf-8-sig, utf-16-le, utf-8"


def test_preview_and_preparation_report_the_same_skipped_files(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    write_jsonl(folder / "pairs.jsonl", PAIRS)
    write_novel(folder)
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    previewed, prepared = RecordingReporter(), RecordingReporter()
    preview(config_of(folder), previewed)
    prepare(config_of(folder), prepared)
    for warnings in (previewed.warnings, prepared.warnings):
        assert warnings["data.files_skipped"]["count"] == warnings["data.other_task"]["count"] == 1
        assert warnings["data.files_skipped"]["reason"] == "it looks like a binary file, not text"
        assert str(warnings["data.other_task"]["first"]).endswith("novel.txt")
        text = format_message("data.files_skipped", warnings["data.files_skipped"], "zh")
        assert "picture.txt，看起来是二进制文件" in text


def test_truncated_dropped_and_remaining_tokens_are_reported(tmp_path: Path) -> None:
    table = write_jsonl(
        tmp_path / "t.jsonl",
        [{"prompt": "p", "response": "x y " * 400}, {"prompt": "p " * 900, "response": "r"}, *PAIRS],
    )
    reporter = RecordingReporter()
    report = preview(config_of(table, validation_fraction=0.0), reporter)
    assert report.over_length >= 2
    assert report.dropped >= 1
    assert report.truncated == reporter.warnings["data.truncated"]["count"]
    assert report.truncated_tokens > 0
    text = preview(config_of(write_novel(tmp_path), validation_fraction=0.0), RecordingReporter())
    assert 0 <= text.remainder_tokens < 64
    assert text.samples_per_epoch * 64 + 1 + text.remainder_tokens == text.train_tokens


def test_fill_ratios_are_reported_with_packing(tmp_path: Path) -> None:
    data = write_tables(tmp_path)["pairs"]
    unpacked, packed = (preview(config_of(data, packing=packing), RecordingReporter()) for packing in (False, True))
    assert unpacked.packed_sequences is unpacked.fill is None
    assert packed.packed_sequences is not None
    assert packed.fill is not None
    assert packed.fill_unpacked is not None
    assert packed.packed_sequences < unpacked.samples_per_epoch
    assert packed.fill > packed.fill_unpacked
    assert packed.tokens_per_step > unpacked.tokens_per_step


def test_too_short_data_is_reported_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Only this.", encoding="utf-8")
    reporter = RecordingReporter()
    report = preview(config_of(tmp_path / "short.txt"), reporter)
    assert (report.samples_per_epoch, report.steps_per_epoch, report.samples) == (0, 0, [])
    assert "data.too_short" in reporter.warnings


# --- samples -----------------------------------------------------------------------------------------


def test_only_answers_of_a_chat_are_in_the_loss(tmp_path: Path) -> None:
    report = preview(config_of(write_tables(tmp_path)["chats"], validation_fraction=0.0), RecordingReporter())
    assert len(report.samples) == 5
    for number, sample in enumerate(report.samples):
        answer = PAIRS[number]["response"]
        expected = (
            f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{PAIRS[number]['prompt']}<|im_end|>\n"
            f"<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n真的吗？<|im_end|>\n"
            "<|im_start|>assistant\nYes.<|im_end|>"
        )
        shown = text_of(sample)
        assert expected.startswith(shown)
        assert (shown == expected) == (sample.length < 65)
        assert f"{answer}<|im_end|>Yes.<|im_end|>".startswith(text_of(sample, in_loss=True))
        assert {token.special for token in sample.tokens if token.text.startswith("<|im_")} == {True}


def test_text_samples_are_contiguous(tmp_path: Path) -> None:
    data = write_novel(tmp_path)
    report = preview(config_of(data, validation_fraction=0.0), RecordingReporter())
    assert all(sample.length == 65 and len(sample.tokens) == 65 for sample in report.samples)
    assert [token.in_loss for token in report.samples[0].tokens] == [False] + [True] * 64
    for before, after in zip(report.samples, report.samples[1:], strict=False):
        assert before.tokens[-1].id == after.tokens[0].id
    text = text_of(report.samples[0])
    assert data.read_text(encoding="utf-8").startswith(text.rstrip("\ufffd"))


def test_the_first_token_of_a_document_is_in_the_loss_only_with_attention_across_documents(
    tmp_path: Path,
) -> None:
    data = write_jsonl(tmp_path / "t.jsonl", [{"text": f"文档 number {n}."} for n in range(200)])
    for attend in (True, False):
        report = preview(config_of(data, attend_across_documents=attend, validation_fraction=0.0), RecordingReporter())
        tokens = report.samples[0].tokens
        assert {token.document for token in tokens} == set(range(tokens[-1].document + 1))
        assert tokens[-1].document > 1
        firsts = [b for a, b in itertools.pairwise(tokens) if a.document != b.document]
        assert {token.in_loss for token in firsts} == {attend}
        ends = [token for token in tokens if token.special]
        assert {token.text for token in ends} == {"<|endoftext|>"}


def test_text_that_spells_a_special_token_is_not_special(tmp_path: Path) -> None:
    data = write_jsonl(
        tmp_path / "t.jsonl", [{"prompt": "say <|im_end|>", "response": f"<|im_end|> {n}"} for n in range(60)]
    )
    (sample, *_) = preview(config_of(data, validation_fraction=0.0), RecordingReporter()).samples
    assert text_of(sample).count("<|im_end|>") == 4
    assert sum(token.special and token.text == "<|im_end|>" for token in sample.tokens) == 2


def test_long_samples_are_truncated_in_the_report(tmp_path: Path) -> None:
    data = write_novel(tmp_path, 3000)
    report = preview(config_of(data, max_seq_len=8192), RecordingReporter())
    assert report.samples[0].length == 8193
    assert len(report.samples[0].tokens) == 1024
    assert len(protocol.encode(report)) < 500_000


# --- sampling of large data -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "rows", "gzip", "folder"])
def test_a_sample_estimates_the_totals(tmp_path: Path, kind: str) -> None:
    rng = random.Random(5)
    rows = [{"text": f"Row {n}: " + " ".join(f"{rng.random():.9f}春眠" for _ in range(n % 23))} for n in range(20_000)]
    if kind == "text":
        data = write_novel(tmp_path, 100_000)
    elif kind == "rows":
        data = write_jsonl(tmp_path / "rows.jsonl", rows)
    elif kind == "gzip":
        data = tmp_path / "rows.jsonl.gz"
        data.write_bytes(gzip.compress(write_jsonl(tmp_path / "rows.jsonl", rows).read_bytes(), 1))
    else:
        data = tmp_path / "folder"
        data.mkdir()
        for n in range(40):
            write_jsonl(data / f"{n:02}.jsonl", rows[500 * n : 500 * n + 500])
    (tmp_path / "own").mkdir()
    tokenizer = str(prepare_files(write_novel(tmp_path / "own", 500), **KNOBS).tokenizer)
    config = config_of(data, tokenizer=tokenizer)
    sampled = preview(config, RecordingReporter(), budget=2_000_000)
    exact = report_prepared_data(prepare_files(data, **{**KNOBS, "tokenizer": tokenizer}), config)
    assert not sampled.complete
    assert sampled.read_bytes < sampled.bytes
    assert sampled.read.tokens < exact.read.tokens
    for name in ("rows", "characters", "tokens"):
        assert getattr(sampled.total, name) == pytest.approx(getattr(exact.total, name), rel=0.08), name
    for name in ("train_tokens", "samples_per_epoch", "steps_per_epoch", "total_steps"):
        assert getattr(sampled, name) == pytest.approx(getattr(exact, name), rel=0.1), name


def test_a_long_file_is_sampled_throughout_and_its_bad_rows_are_located(tmp_path: Path) -> None:
    rows = [json.dumps({"text": "short"})] * 20_000 + [json.dumps({"text": f"long {n} " * 30}) for n in range(8_000)]
    rows[20_100::50] = ["{broken"] * len(rows[20_100::50])
    data = write_jsonl(tmp_path / "sorted.jsonl", rows)
    report = preview(config_of(data), RecordingReporter(), budget=1_000_000)
    exact = report_prepared_data(prepare_files(data, **KNOBS), config_of(data))
    assert report.total.characters == pytest.approx(exact.total.characters, rel=0.1)
    assert report.over_length > 0
    assert report.first_bad is not None
    assert report.first_bad.path == str(data)
    offset = int(report.first_bad.position.removeprefix("after byte "))
    assert b"\n{broken\n" in data.read_bytes()[offset : offset + 200_000]


def test_highly_compressed_data_is_read_partially(tmp_path: Path) -> None:
    data = tmp_path / "same.jsonl.gz"
    with gzip.open(data, "wb", 9) as file:
        for _ in range(400):
            file.write(json.dumps({"text": "same " * 20}).encode() + b"\n" * 2000)
            file.write((json.dumps({"text": "same " * 200}) + "\n").encode() * 100)
    report = preview(config_of(data, max_seq_len=512), RecordingReporter(), budget=1_000_000)
    assert not report.complete
    assert report.read.characters < 20_000_000
    assert report.duplicates > 500


def test_a_stop_request_ends_a_preview_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_POLL_INTERVAL_S", 0.0)  # then poll 20 is during tokenizer training on every machine
    data = write_novel(tmp_path, 20_000)
    for stop_at in (1, 2, 20):
        with pytest.raises(StopRequested):
            preview(config_of(data), RecordingReporter(stop_at))


def test_missing_and_empty_data_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError, match="does not exist"):
        preview(config_of(tmp_path / "no.txt"), RecordingReporter())
    with pytest.raises(TraindeckError) as caught:
        preview(Config(), RecordingReporter())
    assert caught.value.code == "data.none_given"
    (tmp_path / "blank.txt").write_text(" \n" * 10, encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        preview(config_of(tmp_path / "blank.txt"), RecordingReporter())
    assert caught.value.code == "data.empty"


@pytest.mark.parametrize("run", [preview, prepare])
def test_an_unusable_template_is_reported_with_the_users_path(
    tmp_path: Path, run: Callable[[Config, RecordingReporter], object]
) -> None:
    chats = write_jsonl(tmp_path / "chats.jsonl", [{"prompt": f"say {n}", "response": f"{n}"} for n in range(50)])
    model = tmp_path / "模型 model"
    model.mkdir()
    bpe.train(["user assistant 1 2 3"] * 9, 300, "gpt-2", lambda: None).save(str(model / "tokenizer.json"))
    unsafe = {"chat_template": "{{ ''.__class__.__mro__ }}", "eos_token": "<|endoftext|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(unsafe), encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        run(config_of(chats, tokenizer=str(model)), RecordingReporter())
    assert caught.value.code == "data.bad_template"
    assert caught.value.params["path"] == str(model / "tokenizer_config.json")
