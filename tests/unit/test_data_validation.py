"""Validation data, and the splits of data set folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prepared_data import RecordingReporter, decode_split, prepare_files
from trainer_core.config import Config
from trainer_core.data import encoder
from trainer_core.data.report import statistics
from trainer_core.data.report.report import preview
from trainer_core.data.report.statistics import count_overlap
from trainer_core.data.splits import group_by_split
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

pytestmark = pytest.mark.usefixtures("home")


def write_rows(path: Path, numbers: range, word: str = "train") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": f"{word} row {number}, 第{number}行"}, ensure_ascii=False) for number in numbers)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def prepare_with_validation(data: Path, *validation: Path, reporter: RecordingReporter | None = None, **knobs: object):  # type: ignore[no-untyped-def]
    return prepare_files(data, reporter=reporter, validation_data=[str(path) for path in validation], **knobs)


# --- separate validation data ------------------------------------------------------------------------


def test_all_data_is_trained_on_and_all_validation_data_is_evaluated(tmp_path: Path) -> None:
    train, first = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(20), "测试")
    second = write_rows(tmp_path / "c.jsonl", range(20, 30), "测试")
    result = prepare_with_validation(train, first, second, validation_fraction=0.5)
    train_text, validation_text = decode_split(result, "train"), decode_split(result, "validation")
    assert (result.train.documents, result.validation.documents) == (300, 30)
    assert "测试" not in train_text
    assert all(f"测试 row {number}," in validation_text for number in range(30))
    assert [Path(source.path).name for source in result.validation_sources] == ["b.jsonl", "c.jsonl"]


def test_each_plain_text_file_is_one_document_in_its_split(tmp_path: Path) -> None:
    for name in ("train", "held"):
        (tmp_path / f"{name}.txt").write_text(f"{name} words\n" * 3000, encoding="utf-8")
    result = prepare_with_validation(tmp_path / "train.txt", tmp_path / "held.txt")
    assert (result.train.documents, result.validation.documents) == (1, 1)
    assert decode_split(result, "validation") == "held words\n" * 3000 + "<|endoftext|>"


def test_the_tokenizer_is_trained_on_the_training_data_alone(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "a.jsonl", range(300))
    result = prepare_with_validation(train, write_rows(tmp_path / "b.jsonl", range(300), "zyzzyva"))
    alone = prepare_files(train, validation_fraction=0.0)
    assert result.tokenizer.read_bytes() == alone.tokenizer.read_bytes()


@pytest.mark.parametrize("processes", [0, 2])
def test_a_stopped_preparation_resumes_within_the_validation_data(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_COMMIT_INTERVAL_S", 0.0)
    monkeypatch.setattr(encoder, "_BATCH_CHARS", 500)
    monkeypatch.setattr(encoder, "choose_num_processes", lambda *_: processes)
    train, held = write_rows(tmp_path / "a.jsonl", range(100)), write_rows(tmp_path / "b.jsonl", range(400))
    uninterrupted = prepare_with_validation(train, held, cache_dir=str(tmp_path / "uninterrupted"))
    interrupted, stops = str(tmp_path / "interrupted"), 0
    for stop_at in range(4, 40, 4):
        try:
            prepare_with_validation(train, held, reporter=RecordingReporter(stop_at), cache_dir=interrupted)
        except StopRequested:
            stops += 1
    resumed = prepare_with_validation(train, held, cache_dir=interrupted)
    assert stops > 0
    for split in ("train", "validation"):
        assert decode_split(resumed, split) == decode_split(uninterrupted, split)
    assert resumed.report == uninterrupted.report


def test_bad_rows_of_validation_data_are_counted(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(20))
    with held.open("a", encoding="utf-8") as file:
        file.write('\n{"text": \n')
    reporter = RecordingReporter()
    result = prepare_with_validation(train, held, reporter=reporter)
    assert result.report["bad"] == 1
    assert reporter.warnings["data.rows_skipped"]["path"] == str(held)
    with pytest.raises(TraindeckError) as caught:
        prepare_with_validation(train, held, on_bad_row="stop")
    assert caught.value.code == "data.bad_row"


def test_conversations_cannot_be_evaluated_on_plain_text(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "a", "response": "b"}\n' * 40, encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepare_with_validation(pairs, write_rows(tmp_path / "b.jsonl", range(20)))
    assert caught.value.code == "data.mixed"


def test_changed_validation_data_rebuilds_the_cache_and_a_changed_fraction_does_not(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(20))
    fingerprints = {prepare_files(train).fingerprint, prepare_with_validation(train, held).fingerprint}
    assert prepare_with_validation(train, held, validation_fraction=0.3).fingerprint in fingerprints
    assert len(fingerprints) == 2
    write_rows(held, range(21))
    assert prepare_with_validation(train, held).fingerprint not in fingerprints
    swapped, current = prepare_with_validation(held, train), prepare_with_validation(train, held)
    assert swapped.fingerprint != current.fingerprint


@pytest.mark.parametrize("held", ["b.jsonl", "b.parquet"])
def test_without_a_token_cache_validation_data_may_have_any_format(tmp_path: Path, held: str) -> None:
    train = write_rows(tmp_path / "a.jsonl", range(300))
    tables = {
        name: [{"text": f"{name} row {number}"} for number in range(count)] for name, count in (("t", 300), ("v", 40))
    }
    pq.write_table(pa.Table.from_pylist(tables["t"]), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(tables["v"]), tmp_path / "b.parquet")
    write_rows(tmp_path / "b.jsonl", range(40), "v")
    result = prepare_with_validation(tmp_path / "a.parquet", tmp_path / held, token_cache=False)
    cached = prepare_with_validation(tmp_path / "a.parquet", tmp_path / held)
    for split in ("train", "validation"):
        assert decode_split(result, split) == decode_split(cached, split)
    with pytest.raises(TraindeckError) as caught:
        prepare_with_validation(train, tmp_path / held, token_cache=False)
    assert caught.value.code == "data.needs_cache"


# --- rows in both splits ----------------------------------------------------------------------------


def test_rows_in_both_splits_are_counted_and_reported(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(290, 330))
    reporter = RecordingReporter()
    result = prepare_with_validation(train, held, reporter=reporter)
    assert (result.report["overlap"], result.report["validation_rows"]) == (10, 40)
    assert reporter.warnings["data.overlap"] == {"count": 10, "total": 40, "percent": "25"}
    with_cache = RecordingReporter()
    prepare_with_validation(train, held, reporter=with_cache)
    assert "data.overlap" in with_cache.warnings


def test_duplicates_within_the_validation_data_do_not_count_as_overlap(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(400, 420))
    held.write_text(f"{held.read_text(encoding='utf-8')}\n" * 3, encoding="utf-8")
    reporter = RecordingReporter()
    assert prepare_with_validation(train, held, reporter=reporter).report["overlap"] == 0
    assert "data.overlap" not in reporter.warnings


def test_held_out_duplicates_of_training_rows_are_reported(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", range(300))
    reporter = RecordingReporter()
    prepare_files(path, reporter=reporter)
    assert "data.overlap" not in reporter.warnings
    path.write_text(f"{path.read_text(encoding='utf-8')}\n" * 2, encoding="utf-8")
    prepare_files(path, reporter=reporter)
    assert reporter.warnings["data.overlap"]["percent"] != "0"


@pytest.mark.parametrize("limit", [3, 50, 100_000])
def test_overlap_is_exact_with_bounded_memory(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_MAX_HASHES_IN_MEMORY", limit)
    monkeypatch.setattr(statistics, "_BLOCK_VALUES", 7)
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 2**64, 60, dtype=np.uint64)
    train, validation = pool[rng.integers(0, 40, 100)], pool[rng.integers(20, 60, 80)]
    train.astype("<u8").tofile(tmp_path / "train")
    validation.astype("<u8").tofile(tmp_path / "held")
    expected = sum(int(value) in set(train.tolist()) for value in validation)
    assert count_overlap(tmp_path / "train", tmp_path / "held") == expected > 0


# --- splits of a data set folder ---------------------------------------------------------------------

LAYOUTS: dict[str, list[str]] = {
    "files": [
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
        "validation-00000-of-00001.jsonl",
        "test.jsonl",
    ],
    "below data": ["data/train.jsonl", "data/train_more.jsonl", "data/Valid.jsonl", "data/test-1.jsonl"],
    "folders": ["train/a.jsonl", "train/deep/b.jsonl", "dev/c.jsonl", "test/d.jsonl"],
    "only a test split": ["train.jsonl", "train.2.jsonl", "test.jsonl"],
}


def write_data_set(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        word = "learned" if "train" in name else ("tested" if "test" in name else "evaluated")
        write_rows(folder / name, range(100 * number, 100 * number + 100), word)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("as_validation_data", [False, True])
def test_splits_of_a_data_set_folder_are_selected(tmp_path: Path, layout: str, as_validation_data: bool) -> None:
    folder = write_data_set(tmp_path / "set", LAYOUTS[layout])
    result = prepare_with_validation(folder, *([folder] if as_validation_data else []))
    train_text, validation_text = decode_split(result, "train"), decode_split(result, "validation")
    only_test = layout == "only a test split"
    assert [train_text.count(word) for word in ("learned", "evaluated", "tested")] == [200, 0, 0]
    assert validation_text.count("tested" if only_test else "evaluated") == 100 == result.validation.documents
    (train,), (held,) = result.sources, result.validation_sources
    assert train.split == "train"
    assert held.split in ("test",) if only_test else held.split in ("validation", "valid", "dev")


def test_validation_data_takes_precedence_over_a_validation_split(tmp_path: Path) -> None:
    folder = write_data_set(tmp_path / "set", LAYOUTS["files"])
    result = prepare_with_validation(folder, write_rows(tmp_path / "other.jsonl", range(30), "other"))
    assert result.validation.documents == 30
    assert "evaluated" not in decode_split(result, "train")


def test_a_folder_of_validation_data_needs_no_train_split(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "a.jsonl", range(300))
    folder = write_data_set(tmp_path / "set", ["validation.jsonl", "test.jsonl"])
    assert decode_split(prepare_with_validation(train, folder), "validation").count("evaluated") == 100
    without_splits = write_data_set(tmp_path / "without splits", ["x.jsonl", "y.jsonl"])
    assert prepare_with_validation(train, without_splits).validation.documents == 200


@pytest.mark.parametrize(
    "names",
    [
        ["train.jsonl", "more.jsonl"],  # no validation or test split
        ["test.jsonl", "more.jsonl"],
        ["trainer.jsonl", "testing.jsonl"],
    ],
)
def test_folders_without_splits_are_read_completely(tmp_path: Path, names: list[str]) -> None:
    folder = write_data_set(tmp_path / "set", names)
    result = prepare_files(folder)
    assert result.train.documents + result.validation.documents == 200
    assert result.sources[0].split == ""
    assert result.validation_sources == ()


def test_source_code_folders_have_no_splits(tmp_path: Path) -> None:
    for name in ("train.py", "test.py", "model.py", "test/test_model.py", "train/loop.py"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(f"print('{name}')\n" * 200, encoding="utf-8")
    assert prepare_files(tmp_path / "code").sources[0].files == 5


def test_a_split_is_the_first_word_of_the_file_name() -> None:
    folder = Path("set")
    names = ("train.csv", "TEST-1.csv", "val_zh.csv", "dev.jsonl.gz", "training.csv", "a/train.csv", "README.md")
    splits = group_by_split(folder, [folder / name for name in names])
    assert {split: [file.name for file in files] for split, files in splits.items()} == {
        "train": ["train.csv"], "test": ["TEST-1.csv"], "val": ["val_zh.csv"], "dev": ["dev.jsonl.gz"],
    }  # fmt: skip


def save_to_disk(folder: Path, texts: list[str]) -> None:
    """Write a split like `Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    with pa.ipc.new_stream(str(folder / "data.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}), encoding="utf-8")


@pytest.mark.parametrize(
    "splits", [["train", "validation", "test"], ["test", "train"], ["train", "validation_a", "validation_b"]]
)
def test_the_validation_split_of_a_saved_data_set_is_evaluated(tmp_path: Path, splits: list[str]) -> None:
    for name in splits:
        save_to_disk(tmp_path / "set" / name, [f"{name} row {number}" for number in range(100)])
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": splits}), encoding="utf-8")
    result = prepare_files(tmp_path / "set")
    validation_text = decode_split(result, "validation")
    assert decode_split(result, "train").count("train row") == 100 == result.train.documents
    expected = [name for name in splits if name.startswith("validation")] or ["test"]
    assert all(validation_text.count(f"{name} row") == 100 for name in expected)
    assert result.validation.documents == 100 * len(expected)


def test_a_fraction_of_a_saved_data_set_with_one_split_is_held_out(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "set" / "test", [f"row {number}" for number in range(200)])
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["test"]}), encoding="utf-8")
    result = prepare_files(tmp_path / "set")
    assert result.validation_sources == ()
    assert 0 < result.validation.documents < 20


# --- previews ----------------------------------------------------------------------------------------


def config_of(train: Path, held: Path) -> Config:
    return Config(data=[str(train)], validation_data=[str(held)], vocab_size=320, max_seq_len=32)


def test_a_preview_of_small_data_equals_preparation(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), write_rows(tmp_path / "b.jsonl", range(290, 330))
    reporter = RecordingReporter()
    report, result = preview(config_of(train, held), reporter), prepare_with_validation(train, held)
    assert report.complete
    assert (report.train_documents, report.validation_documents) == (300, 40)
    assert (report.train_tokens, report.validation_tokens) == (result.train.tokens, result.validation.tokens)
    assert (report.overlap, report.validation_rows) == (10, 40)
    assert report.total.rows == report.read.rows == 340
    assert "data.overlap" in reporter.warnings


def test_a_preview_of_large_data_estimates_each_split_separately(tmp_path: Path) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(200_000)), write_rows(tmp_path / "b.jsonl", range(500))
    report = preview(config_of(train, held), RecordingReporter(), 2_000_000)
    assert not report.complete
    assert report.validation_documents == 500
    assert report.train_documents == pytest.approx(200_000, rel=0.1)


@pytest.mark.parametrize(
    "build", [lambda folder: folder / "missing.jsonl", lambda folder: write_rows(folder / "empty.jsonl", range(0))]
)
def test_unreadable_validation_data_is_rejected(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    train, held = write_rows(tmp_path / "a.jsonl", range(300)), build(tmp_path)
    for run in (
        lambda: prepare_with_validation(train, held),
        lambda: preview(config_of(train, held), RecordingReporter()),
    ):
        with pytest.raises(TraindeckError) as caught:
            run()
        assert caught.value.code in ("data.not_found", "data.empty")
        assert caught.value.params["path"] == str(held)
