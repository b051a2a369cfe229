"""Preparation: right counts, one clear error, and never half a cache, whoever interrupts it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
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

from trainer_core.config import Config
from trainer_core.data import cache, prepare, store, template
from trainer_core.data.prepare import Prepared, held_out
from trainer_core.data.store import Split, Writer
from trainer_core.messages import CATALOGUE, TraindeckError, Value
from trainer_core.report import Quiet, StopRequested

ROOT = Path(prepare.__file__).resolve().parents[2]


class Listener(Quiet):
    """Notes warnings; stops at poll number `stop_at`."""

    def __init__(self, stop_at: int = 0) -> None:
        self.warnings: dict[str, dict[str, Value]] = {}
        self.polls, self.stop_at = 0, stop_at

    def warn(self, code: str, **params: Value) -> None:
        assert code in CATALOGUE
        self.warnings[code] = params

    def poll(self) -> None:
        self.polls += 1
        if self.polls == self.stop_at:
            raise StopRequested


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(4000)), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"What is {i} plus 1?", "response": f"It is {i + 1}."} for i in range(500)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def prepared(*data: Path, listener: Listener | None = None, **knobs: Any) -> Prepared:
    values = {"vocab_size": 320, "max_seq_len": 32, **knobs}
    return prepare.prepare(Config(data=[str(path) for path in data], **values), listener or Listener())


def decoded(result: Prepared, split: str) -> str:
    tokens = result.split(split)
    return result.codec().decode(tokens.read(0, tokens.tokens).tolist(), skip_special_tokens=False)


def leftovers(home: Path) -> list[Path]:
    """What lies in the cache's folder, beside the hashes that are remembered there."""
    found = (home / "cache").glob("*") if (home / "cache").exists() else ()
    return [path for path in found if path.name != "contents.json"]


# --- what is in a cache ----------------------------------------------------------------------------


def test_both_splits_together_hold_the_whole_text_once(home: Path, text: Path) -> None:
    result = prepared(text)
    lines = (decoded(result, "train") + decoded(result, "validation")).replace(template.END_OF_TEXT, "").splitlines()
    assert sorted(lines) == sorted(text.read_text(encoding="utf-8").splitlines())
    share = result.validation.tokens / (result.train.tokens + result.validation.tokens)
    assert 0.03 < share < 0.07


def test_end_of_text_stands_between_files_and_not_within_one(home: Path, tmp_path: Path, text: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "folder" / name).write_bytes(text.read_bytes())
    result = prepared(tmp_path / "folder", validation_fraction=0.0)
    content = text.read_text(encoding="utf-8") + template.END_OF_TEXT
    assert decoded(result, "train") == content * 2


def test_pairs_are_stored_in_chatml_with_the_place_where_the_response_begins(home: Path, pairs: Path) -> None:
    result = prepared(pairs, max_seq_len=128)
    assert (result.task, result.train.documents + result.validation.documents) == ("sft", 500)
    split, codec = result.split("validation"), result.codec()
    for i, (prompt, response) in enumerate((row["prompt"], row["response"]) for row in split.texts()):
        start, end = split.offsets[i : i + 2].tolist()
        middle = start + int(split.responses[i])
        assert codec.decode(split.read(start, middle).tolist(), False) == template.render_prompt(prompt)
        assert codec.decode(split.read(middle, end).tolist(), False) == template.render_response(response)


def test_held_out_examples_are_always_the_same_and_were_held_out(home: Path, pairs: Path) -> None:
    result = prepared(pairs)
    examples = result.held_out_examples(10)
    assert len(examples) == 10
    assert examples == prepared(pairs).held_out_examples(20)[:10]
    assert not [prompt for prompt, _ in examples if prompt in decoded(result, "train")]


def test_beginnings_for_samples_come_from_held_out_text(home: Path, text: Path) -> None:
    result = prepared(text)
    beginnings = result.held_out_beginnings(4)
    assert len(beginnings) == 4
    assert all(0 < len(one) <= 64 and one in decoded(result, "validation") for one in beginnings)


def test_without_validation_beginnings_come_from_the_training_text(home: Path, text: Path) -> None:
    assert prepared(text, validation_fraction=0.0).held_out_beginnings(2)


def test_what_was_prepared_can_be_sent_to_another_process(home: Path, text: Path) -> None:
    result = prepared(text)
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_given_tokenizer_is_used_and_its_missing_tokens_are_named(home: Path, tmp_path: Path, text: Path) -> None:
    ours = json.loads(prepared(text).tokenizer.read_text(encoding="utf-8"))
    ours["added_tokens"] = [token for token in ours["added_tokens"] if token["content"] != template.IM_END]
    del ours["model"]["vocab"][template.IM_END]
    (tmp_path / "tokenizer.json").write_text(json.dumps(ours), encoding="utf-8")
    listener = Listener()
    result = prepared(text, tokenizer=str(tmp_path), listener=listener)
    assert listener.warnings["data.tokenizer_extended"]["tokens"] == template.IM_END
    assert Tokenizer.from_file(str(result.tokenizer)).token_to_id(template.IM_END) == result.vocab_size - 1


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
    chosen = np.array([held_out(i, fraction) for i in range(4000)])
    assert abs(chosen.mean() - fraction) < 0.002
    block = round(2 / fraction)
    assert all(chosen[i : i + block].any() for i in range(0, 4000 - block, block))


# --- reuse -----------------------------------------------------------------------------------------


def test_the_same_data_is_not_tokenised_twice(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(text)
    monkeypatch.setattr(prepare, "_build", lambda *_: pytest.fail("built again"))
    second = prepared(text)
    assert (first.reused, second.reused) == (False, True)
    assert (first.folder, first.train, first.vocab_size) == (second.folder, second.train, second.vocab_size)


def test_batch_size_learning_rate_and_length_do_not_make_a_new_cache(home: Path, text: Path) -> None:
    first = prepared(text)
    assert prepared(text, batch_size=3, learning_rate=1e-2, max_seq_len=64, seed=7).folder == first.folder


def test_changed_data_or_options_make_a_new_cache(home: Path, text: Path) -> None:
    folders = {
        prepared(text).folder,
        prepared(text, vocab_size=330).folder,
        prepared(text, pre_tokenizer="gpt-2").folder,
    }
    text.write_text(text.read_text(encoding="utf-8").replace("Line 3999", "Lime 3999"), encoding="utf-8")
    folders.add(prepared(text).folder)
    assert len(folders) == 4


def test_a_moved_file_keeps_its_cache(home: Path, text: Path, tmp_path: Path) -> None:
    first = prepared(text)
    (tmp_path / "elsewhere").mkdir()
    text.rename(tmp_path / "elsewhere" / text.name)
    assert prepared(tmp_path / "elsewhere" / text.name).folder == first.folder


def test_a_file_with_another_name_and_date_but_the_same_content_keeps_its_cache(home: Path, text: Path) -> None:
    first = prepared(text)
    copy = text.with_name("副本.txt")
    copy.write_bytes(text.read_bytes())
    os.utime(copy, (1_000_000_000, 1_000_000_000))
    assert prepared(copy).folder == first.folder


def test_a_change_in_the_middle_of_the_same_size_is_seen(home: Path, text: Path) -> None:
    first = prepared(text)
    content = bytearray(text.read_bytes())
    middle = content.index(b" ", len(content) // 2)
    content[middle] = ord("_")
    text.write_bytes(content)
    assert prepared(text).folder != first.folder


def test_warnings_are_repeated_when_a_cache_is_reused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words to train on"}\n' * 100 + "bad\n", encoding="utf-8")
    for _ in range(2):
        listener = Listener()
        prepared(tmp_path / "a.jsonl", listener=listener)
        assert listener.warnings["data.rows_skipped"]["count"] == 1


def test_a_cache_that_lost_a_file_is_built_again(home: Path, text: Path) -> None:
    first = prepared(text)
    before = decoded(first, "train")
    (first.folder / "train" / "tokens-00000.bin").unlink()
    second = prepared(text)
    assert not second.reused
    assert decoded(second, "train") == before


# --- interruptions ---------------------------------------------------------------------------------


def test_a_stop_at_any_poll_leaves_nothing_and_the_next_goes_through(home: Path, text: Path) -> None:
    counting = Listener()
    prepared(text, listener=counting, vocab_size=310)
    assert counting.polls >= 3  # the fingerprint, the tokenizer, each batch
    for stop_at in range(1, counting.polls + 1):
        with contextlib.suppress(StopRequested):  # one that is quicker than the first may have fewer polls
            prepared(text, listener=Listener(stop_at), vocab_size=300 + stop_at)
        assert all(cache.read_meta(folder) for folder in leftovers(home))
    assert prepared(text, vocab_size=301).train.samples > 0


def test_what_a_killed_process_left_is_removed_by_the_next(home: Path, text: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    half = home / "cache" / f".building-{cache._host()}-{dead.pid}-0123abcd"
    half.mkdir(parents=True)
    (half / "tokens").write_bytes(b"x")
    result = prepared(text)
    assert leftovers(home) == [result.folder]


def test_two_processes_that_prepare_the_same_data_both_succeed(home: Path, text: Path) -> None:
    script = (
        "import sys; from trainer_core.config import Config; from trainer_core.data.prepare import prepare;"
        "from trainer_core.report import Quiet;"
        "print(prepare(Config(data=[sys.argv[1]], vocab_size=320, max_seq_len=32), Quiet()).train.tokens)"
    )
    command = [sys.executable, "-c", script, str(text)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    result = prepared(text)
    assert result.reused
    assert said == [str(result.train.tokens)] * 3
    assert leftovers(home) == [result.folder]


def test_a_full_disk_is_said_and_leaves_nothing(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Writer, "add", full)
    with pytest.raises(TraindeckError) as caught:
        prepared(text)
    assert caught.value.code == "disk.full"
    assert leftovers(home) == []


def test_a_cache_folder_that_cannot_be_made_is_said(home: Path, text: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        prepared(text, cache_dir=str(text / "below a file"))
    assert caught.value.code == "disk.not_writable"


def test_preparing_needs_no_torch(home: Path, text: Path) -> None:
    script = (
        "import sys; from trainer_core.config import Config; from trainer_core.data.prepare import prepare;"
        "from trainer_core.report import Quiet; prepare(Config(data=[sys.argv[1]], vocab_size=320), Quiet());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(text)], cwd=ROOT, check=True)


# --- token files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4)])
def test_tokens_are_read_across_shards(tmp_path: Path, vocab_size: int, width: int) -> None:
    writer = Writer(tmp_path / "split", vocab_size, shard_tokens=10)
    tokens = list(range(vocab_size - 47, vocab_size))
    for start in range(0, 47, 6):
        writer.begin_document()
        writer.add(tokens[start : start + 6])
    writer.close()
    shards = sorted((tmp_path / "split").glob("tokens-*.bin"))
    assert [shard.stat().st_size for shard in shards] == [10 * width] * 4 + [7 * width]
    split = pickle.loads(pickle.dumps(Split(tmp_path / "split", vocab_size, shard_tokens=10)))
    assert split.offsets.tolist() == [*range(0, 48, 6), 47] if 47 % 6 else True
    for start, stop in [(0, 47), (9, 11), (10, 20), (3, 3), (19, 41), (46, 47)]:
        assert split.read(start, stop).tolist() == tokens[start:stop]
    split.close()
    assert store.token_type(vocab_size) == f"<u{width}"
