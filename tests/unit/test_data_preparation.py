"""Preparation: content of the cache, counts, warnings and errors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tests.prepared_data import RecordingReporter, decode_split, prepare_files
from trainer_core.config import Config
from trainer_core.data import prepare
from trainer_core.data.split_files import HeldOutSelector, example_rank, is_example
from trainer_core.data.tokenizing import conversations
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

ROOT = Path(prepare.__file__).resolve().parents[2]


# --- content of a cache ----------------------------------------------------------------------------


def test_both_splits_together_contain_the_text_once(home: Path, text: Path) -> None:
    result = prepare_files(text)
    lines = (
        (decode_split(result, "train") + decode_split(result, "validation"))
        .replace(conversations.END_OF_TEXT, "")
        .splitlines()
    )
    assert sorted(lines) == sorted(text.read_text(encoding="utf-8").splitlines())
    share = result.validation.tokens / (result.train.tokens + result.validation.tokens)
    assert 0.03 < share < 0.07


def test_each_file_ends_with_one_end_of_text_token(home: Path, tmp_path: Path, text: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "folder" / name).write_bytes(text.read_bytes())
    result = prepare_files(tmp_path / "folder", validation_fraction=0.0)
    content = text.read_text(encoding="utf-8") + conversations.END_OF_TEXT
    assert decode_split(result, "train") == content * 2


def test_conversations_are_stored_as_chatml_with_the_response_trained(home: Path, pairs: Path) -> None:
    result = prepare_files(pairs, max_seq_len=128)
    assert (result.task, result.train.documents + result.validation.documents) == ("sft", 500)
    split, codec = result.open_split("validation"), result.load_codec()
    for i, row in enumerate(split.texts()):
        (_, prompt), (_, response) = row["turns"]
        start, end = split.offsets[i : i + 2].tolist()
        ((first, stop),) = split.spans[slice(*split.span_offsets[i : i + 2])].tolist()
        assert codec.decode(split.read(start, start + first).tolist(), False) == (
            f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert codec.decode(split.read(start + first, start + stop).tolist(), False) == f"{response}<|im_end|>"
        assert start + stop == end


def test_held_out_chats_are_a_fixed_sample_of_the_validation_split(home: Path, pairs: Path) -> None:
    result = prepare_files(pairs)
    chats = result.held_out_chats(10)
    assert len(chats) == 10
    assert chats == prepare_files(pairs).held_out_chats(20)[:10]
    assert not [turns for turns in chats if turns[0][1] in decode_split(result, "train")]


def test_held_out_prompts_are_excerpts_of_validation_text(home: Path, text: Path) -> None:
    result = prepare_files(text)
    prompts = result.held_out_prompts(4)
    assert len(prompts) == 4
    assert all(0 < len(prompt) <= 64 and prompt in decode_split(result, "validation") for prompt in prompts)


def test_prompts_come_from_training_text_without_a_validation_split(home: Path, text: Path) -> None:
    assert prepare_files(text, validation_fraction=0.0).held_out_prompts(2)


def test_prepared_data_is_picklable(home: Path, text: Path) -> None:
    result = prepare_files(text)
    assert pickle.loads(pickle.dumps(result)) == result


def test_tokens_missing_in_a_given_tokenizer_are_added_with_a_warning(home: Path, tmp_path: Path, text: Path) -> None:
    document = json.loads(prepare_files(text).tokenizer.read_text(encoding="utf-8"))
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] != conversations.IM_END]
    del document["model"]["vocab"][conversations.IM_END]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    reporter = RecordingReporter()
    result = prepare_files(text, tokenizer=str(tmp_path), reporter=reporter)
    assert reporter.warnings["data.tokenizer_extended"]["tokens"] == conversations.IM_END
    assert Tokenizer.from_file(str(result.tokenizer)).token_to_id(conversations.IM_END) == result.vocab_size - 1


# --- data that is too short or too long ------------------------------------------------------------


def test_preparation_without_data_raises_an_error(home: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        prepare_files()
    assert caught.value.code == "data.none_given"


def test_a_text_shorter_than_one_sequence_raises_an_error(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short to train on.", encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepare_files(tmp_path / "short.txt", max_seq_len=256)
    assert caught.value.code == "data.too_short"
    assert caught.value.params["needed"] == 257


def test_too_little_text_for_validation_causes_a_warning(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A few words to train on, no more. " * 10, encoding="utf-8")
    reporter = RecordingReporter()
    result = prepare_files(tmp_path / "short.txt", reporter=reporter)
    assert result.train.samples > 0
    assert result.validation.samples == 0
    assert "data.no_validation" in reporter.warnings


def test_a_table_without_rows_raises_an_error(home: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(TraindeckError) as caught:
        prepare_files(tmp_path / "a.parquet")
    assert caught.value.code == "data.empty"


def test_a_relative_path_uses_the_same_cache(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(text.parent)
    assert prepare_files(Path(text.name)).folder == prepare_files(text).folder


def test_truncated_and_dropped_conversations_are_counted(home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "short", "response": "short"}] * 50
    rows += [{"prompt": "short", "response": "long " * 100}] * 3 + [{"prompt": "long " * 100, "response": "x"}] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    reporter = RecordingReporter()
    result = prepare_files(tmp_path / "a.jsonl", reporter=reporter, validation_fraction=0.0, max_seq_len=64)
    assert (result.truncated, result.dropped, result.train.samples) == (3, 2, 53)
    assert reporter.warnings["data.truncated"]["count"] == 3
    assert reporter.warnings["data.samples_dropped"]["count"] == 2


def test_rewards_compare_with_whole_answers_so_longer_rows_are_dropped(home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "short", "response": "short"}] * 5 + [{"prompt": "short", "response": "long " * 100 + "so 97"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    reporter = RecordingReporter()
    settings: dict[str, Any] = {"objective": "grpo", "rewards": ["number"], "validation_fraction": 0.0}
    result = prepare_files(tmp_path / "a.jsonl", reporter=reporter, max_seq_len=64, **settings)
    assert (result.truncated, result.dropped, result.train.samples) == (0, 1, 5)
    assert reporter.warnings["data.references_dropped"] == {"count": 1, "total": 6, "limit": 64}
    with pytest.raises(TraindeckError) as caught:
        prepare_files(tmp_path / "a.jsonl", max_seq_len=8, **settings)
    assert caught.value.code == "data.references_too_long"


def test_data_without_a_usable_conversation_raises_an_error(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "long " * 100, "response": "x"}), encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepare_files(tmp_path / "a.jsonl", max_seq_len=8)
    assert caught.value.code == "data.answers_cut_off"


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 0.3, 0.4, 0.5])
def test_held_out_documents_are_evenly_distributed(fraction: float) -> None:
    held_out = HeldOutSelector(fraction).mask(np.arange(4000))
    assert abs(held_out.mean() - fraction) < 0.002
    block = round(2 / fraction)
    assert all(held_out[i : i + block].any() for i in range(0, 4000 - block, block))


def test_held_out_documents_are_the_same_with_32_bit_integers() -> None:
    numbers = np.arange(100_000)
    assert np.array_equal(HeldOutSelector(0.05).mask(numbers.astype(np.int32)), HeldOutSelector(0.05).mask(numbers))


def test_preparation_imports_no_torch(home: Path, text: Path) -> None:
    script = (
        "import sys; from trainer_core.config import Config; from trainer_core.data.prepare import prepare;"
        "from trainer_core.progress import NullReporter;"
        "prepare(Config(data=[sys.argv[1]], vocab_size=320), NullReporter());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(text)], cwd=ROOT, check=True)


def test_tokenizer_training_stops_while_it_skips_rows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("some words\n" * 200_000, encoding="utf-8")
    monkeypatch.setattr(prepare, "keyed_hash", lambda *_: 2**64)  # no row is sampled
    monkeypatch.setattr(prepare, "train", lambda texts, *_: list(texts))  # does not poll
    config = Config(data=[str(path)])
    with pytest.raises(StopRequested):
        prepare._train_tokenizer(prepare.scan_datasets(config), config, RecordingReporter(stop_at=3))


# --- sampling of held-out documents -------------------------------------------------------------------


def test_examples_are_a_uniform_sample_of_all_held_out_documents() -> None:
    documents = 200_000
    # While documents are written, their final number is unknown.
    candidates = [number for number in range(documents) if is_example(number, number + 1)]
    chosen = sorted((number for number in candidates if is_example(number, documents)), key=example_rank)[:64]
    assert len(candidates) < 30_000
    assert chosen == sorted(range(documents), key=example_rank)[:64]


def test_held_out_chats_come_from_the_whole_validation_split(home: Path, tmp_path: Path) -> None:
    rows = ({"prompt": f"What is {n}?", "response": str(n)} for n in range(20_000))
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = prepare_files(path, validation_fraction=0.5)
    prompts = [int(turns[-1][1]) for turns in result.held_out_chats(1000)]
    assert len(set(prompts)) == 1000
    below = sum(number < 8192 for number in prompts)  # the rows of the first 4,096 held-out documents
    assert 350 < below < 470  # 41 % of 1,000; it would be 53 % if early documents were preferred
