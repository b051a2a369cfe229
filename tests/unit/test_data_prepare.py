"""What is prepared: right content, right counts, and one clear error where it cannot be."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tests.preparing import Listener, decoded, prepared
from trainer_core.config import Config
from trainer_core.data import prepare
from trainer_core.data.split_files import HeldOutSelector, example_rank, is_example
from trainer_core.data.tokenizing import conversations
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

ROOT = Path(prepare.__file__).resolve().parents[2]


# --- what is in a cache ----------------------------------------------------------------------------


def test_both_splits_together_hold_the_whole_text_once(home: Path, text: Path) -> None:
    result = prepared(text)
    lines = (
        (decoded(result, "train") + decoded(result, "validation")).replace(conversations.END_OF_TEXT, "").splitlines()
    )
    assert sorted(lines) == sorted(text.read_text(encoding="utf-8").splitlines())
    share = result.validation.tokens / (result.train.tokens + result.validation.tokens)
    assert 0.03 < share < 0.07


def test_end_of_text_stands_between_files_and_not_within_one(home: Path, tmp_path: Path, text: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "folder" / name).write_bytes(text.read_bytes())
    result = prepared(tmp_path / "folder", validation_fraction=0.0)
    content = text.read_text(encoding="utf-8") + conversations.END_OF_TEXT
    assert decoded(result, "train") == content * 2


def test_pairs_are_stored_in_chatml_and_learned_from_the_response_to_its_end(home: Path, pairs: Path) -> None:
    result = prepared(pairs, max_seq_len=128)
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


def test_held_out_conversations_are_always_the_same_and_were_held_out(home: Path, pairs: Path) -> None:
    result = prepared(pairs)
    chats = result.held_out_chats(10)
    assert len(chats) == 10
    assert chats == prepared(pairs).held_out_chats(20)[:10]
    assert not [turns for turns in chats if turns[0][1] in decoded(result, "train")]


def test_beginnings_for_samples_come_from_held_out_text(home: Path, text: Path) -> None:
    result = prepared(text)
    beginnings = result.held_out_prompts(4)
    assert len(beginnings) == 4
    assert all(0 < len(one) <= 64 and one in decoded(result, "validation") for one in beginnings)


def test_without_validation_beginnings_come_from_the_training_text(home: Path, text: Path) -> None:
    assert prepared(text, validation_fraction=0.0).held_out_prompts(2)


def test_what_was_prepared_can_be_sent_to_another_process(home: Path, text: Path) -> None:
    result = prepared(text)
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_given_tokenizer_is_used_and_its_missing_tokens_are_named(home: Path, tmp_path: Path, text: Path) -> None:
    ours = json.loads(prepared(text).tokenizer.read_text(encoding="utf-8"))
    ours["added_tokens"] = [token for token in ours["added_tokens"] if token["content"] != conversations.IM_END]
    del ours["model"]["vocab"][conversations.IM_END]
    (tmp_path / "tokenizer.json").write_text(json.dumps(ours), encoding="utf-8")
    listener = Listener()
    result = prepared(text, tokenizer=str(tmp_path), listener=listener)
    assert listener.warnings["data.tokenizer_extended"]["tokens"] == conversations.IM_END
    assert Tokenizer.from_file(str(result.tokenizer)).token_to_id(conversations.IM_END) == result.vocab_size - 1


# --- too little, too long --------------------------------------------------------------------------


def test_no_data_at_all_is_said_so(home: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        prepared()
    assert caught.value.code == "data.none_given"


def test_a_text_shorter_than_one_sequence_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short to train on.", encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepared(tmp_path / "short.txt", max_seq_len=256)
    assert caught.value.code == "data.too_short"
    assert caught.value.params["needed"] == 257


def test_too_little_text_for_validation_is_trained_on_with_a_warning(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A few words to train on, no more. " * 10, encoding="utf-8")
    listener = Listener()
    result = prepared(tmp_path / "short.txt", listener=listener)
    assert result.train.samples > 0
    assert result.validation.samples == 0
    assert "data.no_validation" in listener.warnings


def test_a_table_without_rows_is_empty(home: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(TraindeckError) as caught:
        prepared(tmp_path / "a.parquet")
    assert caught.value.code == "data.empty"


def test_a_relative_path_is_prepared_too(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(text.parent)
    assert prepared(Path(text.name)).folder == prepared(text).folder


def test_pairs_that_are_too_long_are_cut_or_left_out_and_counted(home: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "short", "response": "short"}] * 50
    rows += [{"prompt": "short", "response": "long " * 100}] * 3 + [{"prompt": "long " * 100, "response": "x"}] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    listener = Listener()
    result = prepared(tmp_path / "a.jsonl", listener=listener, validation_fraction=0.0, max_seq_len=64)
    assert (result.truncated, result.dropped, result.train.samples) == (3, 2, 53)
    assert listener.warnings["data.truncated"]["count"] == 3
    assert listener.warnings["data.samples_dropped"]["count"] == 2


def test_pairs_of_which_none_fits_are_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "long " * 100, "response": "x"}), encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepared(tmp_path / "a.jsonl", max_seq_len=8)
    assert caught.value.code == "data.too_few_samples"


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 0.3, 0.4, 0.5])
def test_every_stretch_of_documents_gives_its_share_to_validation(fraction: float) -> None:
    chosen = HeldOutSelector(fraction).mask(np.arange(4000))
    assert abs(chosen.mean() - fraction) < 0.002
    block = round(2 / fraction)
    assert all(chosen[i : i + block].any() for i in range(0, 4000 - block, block))


def test_numbers_of_32_bits_as_windows_has_them_choose_the_same_documents() -> None:
    numbers = np.arange(100_000)
    assert np.array_equal(HeldOutSelector(0.05).mask(numbers.astype(np.int32)), HeldOutSelector(0.05).mask(numbers))


def test_preparing_needs_no_torch(home: Path, text: Path) -> None:
    script = (
        "import sys; from trainer_core.config import Config; from trainer_core.data.prepare import prepare;"
        "from trainer_core.progress import NullReporter;"
        "prepare(Config(data=[sys.argv[1]], vocab_size=320), NullReporter());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(text)], cwd=ROOT, check=True)


def test_a_stop_is_heard_where_rows_are_passed_over_for_the_tokenizer(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / "long.txt"
    long.write_text("some words\n" * 200_000, encoding="utf-8")
    monkeypatch.setattr(prepare, "keyed_hash", lambda *_: 2**64)  # none of them is in the sample
    monkeypatch.setattr(prepare, "train", lambda texts, *_: list(texts))  # nor does it poll
    config = Config(data=[str(long)])
    with pytest.raises(StopRequested):
        prepare._train_tokenizer(prepare.scan_datasets(config), config, Listener(stop_at=3))


# --- which held-out documents give prompts ----------------------------------------------------------


def test_prompts_are_a_uniform_sample_of_all_held_out_documents() -> None:
    documents = 200_000
    kept = [number for number in range(documents) if is_example(number, number + 1)]  # while they are written
    chosen = sorted((number for number in kept if is_example(number, documents)), key=example_rank)[:64]
    assert len(kept) < 30_000
    assert chosen == sorted(range(documents), key=example_rank)[:64]


def test_all_of_few_held_out_documents_may_give_prompts() -> None:
    assert all(is_example(number, 4096) for number in range(4096))


def test_prompts_come_from_behind_the_first_thousands_too(home: Path, tmp_path: Path) -> None:
    rows = ({"prompt": f"What is {n}?", "response": str(n)} for n in range(20_000))
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = prepared(path, validation_fraction=0.5)
    asked = [int(turns[-1][1]) for turns in result.held_out_chats(1000)]
    assert len(set(asked)) == 1000
    below = sum(number < 8192 for number in asked)  # the rows of the first 4,096 held-out documents
    assert 350 < below < 470  # 41 %; 53 % when the first ones are preferred
