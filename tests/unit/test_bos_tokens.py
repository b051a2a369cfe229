"""BOS and EOS tokens: added where the tokenizer requires them, once per document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from tests.prepared_data import prepare_files
from tests.unit.model_folders import load_codec, model_folder
from trainer_core.data.prepare import PreparedData
from trainer_core.data.tokenizing import tokenizer
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.generation import generate

TEXTS = [
    "It's 12345, they'LL say.\n",
    "床前明月光，疑是地上霜。\n",
    "  naïve café 👩‍👩‍👧",
    "a <s> b <|begin_of_text|> c <bos> d",
]
BOS = {
    "llama3": "<|begin_of_text|>",
    "llama2": "<s>",
    "mistral": "<s>",
    "gemma": "<bos>",
    "deepseek": "<｜begin▁of▁sentence｜>",
}
WITHOUT_BOS = ("qwen2.5", "qwen3", "phi3", "unigram")


def load_folder(folder: Path, family: str, **changed: Any) -> Codec:
    return tokenizer.load_user_tokenizer(model_folder(folder, family, **changed) / "tokenizer.json")[0]


def read_ids(prepared: PreparedData, name: str = "train") -> list[int]:
    split = prepared.open_split(name)
    ids: list[int] = split.read(0, split.tokens).tolist()
    return ids


# --- prompts -----------------------------------------------------------------------------


def test_a_prompt_begins_with_bos_only_if_the_tokenizer_requires_it() -> None:
    for family in (*BOS, *WITHOUT_BOS):
        codec = load_codec(family)
        assert codec.prefix_ids == ([codec.tokenizer.token_to_id(BOS[family])] if family in BOS else [])
        assert generate.prompt_ids(codec, "Hello", chat=False) == [*codec.prefix_ids, *codec.encode("Hello")]


def test_a_post_processor_can_prepend_several_tokens(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "qwen2.5")
    model = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [(name, model.token_to_id(name)) for name in ("<|im_start|>", "<|endoftext|>")]
    model.post_processor = processors.TemplateProcessing(single="<|im_start|> <|endoftext|> $A", special_tokens=special)
    model.save(str(folder / "tokenizer.json"))
    codec, _ = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
    assert codec.prefix_ids == [number for _, number in special]


def test_add_bos_token_without_a_bos_token_adds_nothing(tmp_path: Path) -> None:
    assert load_folder(tmp_path, "qwen2.5", add_bos_token=True).prefix_ids == []


# --- documents ----------------------------------------------------------------------------


def write_rows(folder: Path, count: int = 40) -> Path:
    path = folder / "rows.jsonl"
    texts = [f"Row {n}: {TEXTS[n % 4]}" for n in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize("family", BOS)
def test_every_document_begins_with_bos_and_no_text_becomes_bos(tmp_path: Path, family: str) -> None:
    folder = model_folder(tmp_path / "model", family)
    prepared = prepare_files(write_rows(tmp_path), tokenizer=str(folder), max_seq_len=16)
    codec, count = prepared.load_codec(), 0
    for name in ("train", "validation"):
        split = prepared.open_split(name)
        ids = np.array(read_ids(prepared, name))
        starts = split.offsets[:-1]
        assert (ids[starts] == codec.prefix_ids[0]).all()
        assert np.flatnonzero(ids == codec.prefix_ids[0]).tolist() == starts.tolist()
        assert (ids[split.offsets[1:] - 1] == codec.end_of_text).all()
        for start, stop in zip(starts.tolist(), split.offsets[1:].tolist(), strict=True):
            text = codec.decode(ids[start:stop].tolist())
            assert ids[start:stop].tolist() == [*codec.prefix_ids, *codec.encode(text), codec.end_of_text]
            count += 1
    assert count == 40


def test_each_part_of_a_plain_text_begins_with_bos(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("The quick brown fox jumps. " * 4000, encoding="utf-8")
    folder = model_folder(tmp_path / "model", "llama3")
    prepared = prepare_files(tmp_path / "novel.txt", tokenizer=str(folder))
    codec = prepared.load_codec()
    for name in ("train", "validation"):
        split = prepared.open_split(name)
        assert split.documents > 1
        assert (
            np.flatnonzero(np.array(read_ids(prepared, name)) == codec.prefix_ids[0]).tolist()
            == split.offsets[:-1].tolist()
        )


def test_a_long_row_encoded_in_parts_has_one_bos(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "The quick brown fox. " * 30_000}) + "\n", encoding="utf-8")
    folder = model_folder(tmp_path / "model", "llama3")
    prepared = prepare_files(path, tokenizer=str(folder), validation_fraction=0.0)
    assert read_ids(prepared).count(prepared.load_codec().prefix_ids[0]) == 1


def test_documents_without_a_token_cache_begin_with_bos(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [f"Row {n}: {TEXTS[n % 4]}" for n in range(40)]}), tmp_path / "rows.parquet")
    knobs: dict[str, Any] = {"tokenizer": str(model_folder(tmp_path / "model", "gemma")), "max_seq_len": 16}
    cached = prepare_files(tmp_path / "rows.parquet", **knobs)
    uncached = prepare_files(tmp_path / "rows.parquet", **knobs, token_cache=False)
    assert read_ids(cached) == read_ids(uncached)
    assert read_ids(cached)[0] == cached.load_codec().prefix_ids[0]


@pytest.mark.parametrize("family", ["llama3", "mistral", "gemma", "llama2"])
def test_bos_of_a_chat_template_is_not_doubled_and_not_in_the_loss(tmp_path: Path, family: str) -> None:
    codec = load_folder(tmp_path, family)
    turns = [("user", "Hello"), ("assistant", "Hello, how are you today?")]
    encoded = codec.encode_chats([turns])[0]
    assert codec.encode_prompt("Hello")[:2].count(codec.prefix_ids[0]) == 1
    assert np.flatnonzero(encoded.ids == codec.prefix_ids[0]).tolist() == [0]
    assert all(start > 0 for start, _ in encoded.spans)


def test_chatml_begins_with_bos_if_the_tokenizer_requires_it(tmp_path: Path) -> None:
    codec = load_folder(tmp_path / "model", "llama3", chat_template=None)
    turns = [("user", "Hello"), ("assistant", "Yes"), ("user", "Sure?"), ("assistant", "yes")]
    chats = codec.encode_chats([turns, turns])
    for chat in chats:
        assert np.flatnonzero(chat.ids == codec.prefix_ids[0]).tolist() == [0]
        assert [codec.decode(chat.ids[slice(*span)].tolist()) for span in chat.spans] == ["Yes", "yes"]
    transformers = pytest.importorskip("transformers")
    codec.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_bytes(codec.config_json("sft", 256))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = reference.apply_chat_template(messages, return_dict=False)
    assert expected[: len(chats[0].ids)] == chats[0].ids.tolist()
    prompt = reference.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    reloaded = Codec.load(tmp_path / "tokenizer.json")
    assert prompt == codec.encode_prompt("Hello") == reloaded.encode_prompt("Hello")


# --- checkpoints ------------------------------------------------------------------------------


def test_add_eos_token_is_kept_and_adds_one_token_per_document(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = model_folder(tmp_path / "model", "llama2", add_eos_token=True)
    prepared = prepare_files(write_rows(tmp_path), tokenizer=str(folder), max_seq_len=16)
    codec = prepared.load_codec()
    reference = transformers.AutoTokenizer.from_pretrained(prepared.folder)
    text = "Row 0: " + TEXTS[0]
    assert reference(text)["input_ids"] == [*codec.prefix_ids, *codec.encode(text), codec.end_of_text]
    ids = read_ids(prepared)
    assert ids.count(codec.end_of_text) == prepared.train.documents
    assert generate.prompt_ids(codec, "Hello", chat=False)[-1] != codec.end_of_text
