"""Tokenizers: lossless decoding, ids equal to those of transformers, and no special tokens from text."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.unit.model_folders import FAMILIES, model_folder
from trainer_core.data.tokenizing import bpe, conversations, tokenizer, tokenizer_files
from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

TEXTS = [
    "def add(a, b):\n    return a + b  # it's 12345\n" * 20,
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。\n" * 20,
    "What is 12 plus 30? It's 42, they'LL say.\r\n\r\n  \t indented\n" * 20,
]
UNUSUAL_TEXTS = [
    "",
    " ",
    "\n\n",
    "a\tb",
    "naïve café",
    "👩‍👩‍👧 emoji",
    "\x00\x01 control",
    "1234567890",
    "日本語テキスト",
    "e\u0301",
]


def train_codec(kind: Any = "qwen2", vocab_size: int = 400) -> Codec:
    return Codec(bpe.train(TEXTS, vocab_size, kind, lambda: None))


@pytest.mark.parametrize("kind", REGEXES)
def test_decoding_restores_any_text(kind: str) -> None:
    codec = train_codec(kind)
    for text in [*TEXTS, *UNUSUAL_TEXTS]:
        composed = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
        assert codec.decode(codec.encode(text)) == composed


def test_special_tokens_have_the_first_ids() -> None:
    codec = train_codec(vocab_size=350)
    assert (codec.end_of_text, codec.end_of_turn, codec.vocab_size) == (0, 2, 350)
    assert codec.stop_token_ids == {0, 2}


def test_a_special_token_written_in_a_text_stays_text() -> None:
    codec = train_codec()
    for marker in conversations.SPECIAL_TOKENS:
        ids = codec.encode(f"before {marker} after")
        assert not {0, 1, 2} & set(ids)
        assert codec.decode(ids) == f"before {marker} after"


# --- user tokenizers ------------------------------------------------------------------------------


def write_byte_tokenizer(path: Path) -> Path:
    """Write a tokenizer.json without special tokens, with truncation and padding."""
    byte_tokenizer = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    byte_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_tokenizer.enable_truncation(4)
    byte_tokenizer.enable_padding(length=16)
    path.write_text(byte_tokenizer.to_str(), encoding="utf-8")
    return path


def test_missing_special_tokens_are_added_to_a_user_tokenizer(tmp_path: Path) -> None:
    path = write_byte_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer_files.find_tokenizer(str(tmp_path)) == path
    codec, missing = tokenizer.load_user_tokenizer(path)
    assert missing == list(conversations.SPECIAL_TOKENS)
    assert codec.vocab_size == 259
    assert len(codec.encode("longer than four")) == 16  # neither truncated nor padded


@pytest.mark.parametrize(
    ("family", "end_of_text", "end_of_turn", "missing"),
    [
        ("llama3", "<|end_of_text|>", "<|eot_id|>", []),
        ("qwen2.5", "<|endoftext|>", "<|im_end|>", []),
        ("mistral", "</s>", "</s>", []),
        ("gemma", "<eos>", "<end_of_turn>", []),
        ("phi3", "<|endoftext|>", "<|end|>", []),
        ("deepseek", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>", []),
        ("unigram", "</s>", "<|im_end|>", ["<|im_start|>", "<|im_end|>"]),
    ],
)
def test_a_user_tokenizer_keeps_its_special_tokens(
    tmp_path: Path, family: str, end_of_text: str, end_of_turn: str, missing: list[str]
) -> None:
    codec, added = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    assert added == missing
    ids = [codec.tokenizer.token_to_id(token) for token in (end_of_text, end_of_turn)]
    assert [codec.end_of_text, codec.end_of_turn] == ids
    assert codec.stop_token_ids == set(ids)
    codec.save(tmp_path / "saved.json")
    loaded = Codec.load(tmp_path / "saved.json")
    assert [loaded.end_of_text, loaded.end_of_turn, loaded.stop_token_ids] == [*ids, codec.stop_token_ids]
    assert loaded.encode_prompt("Hello") == codec.encode_prompt("Hello")


def test_tokens_named_only_in_the_configuration_are_added(tmp_path: Path) -> None:
    added = {"700000": {"content": "<|extra|>", "special": True}, "x": 1}
    folder = model_folder(tmp_path, "qwen2.5", bos_token="<|begin|>", added_tokens_decoder=added)
    codec, missing = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
    assert missing == ["<|extra|>", "<|begin|>"]
    assert codec.tokenizer.token_to_id("<|begin|>") == codec.vocab_size - 1


def test_special_tokens_map_is_read(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "llama2", bos_token=None, eos_token=None)
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(names), encoding="utf-8")
    codec, _ = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
    assert codec.decode(codec.encode_prompt("Hello"), skip_special_tokens=False).startswith("<s>")


INVALID_FILES: dict[str, bytes] = {
    "empty": b"",
    "no fields": b"{}",
    "not JSON": b"not json",
    "unknown model": b'{"model": {"type": "Unheard"}}',
    "not UTF-8": b"\xff\xfe" * 100,
    "a list": b"[1, 2]",
    "deeply nested": b"[" * 100_000,
    "no vocabulary": b'{"model": {"type": "Unigram", "vocab": []}}',
    "merges of unknown tokens": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
}


@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES.keys())
def test_an_invalid_file_is_rejected_with_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TraindeckError) as caught:
        tokenizer.load_user_tokenizer(tmp_path / "tokenizer.json")
    assert caught.value.code == "data.bad_tokenizer"
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


@given(index=st.integers(0, 10**9), byte=st.integers(0, 255), truncate=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_tokenizer_is_rejected_or_usable(tmp_path: Path, index: int, byte: int, truncate: bool) -> None:
    folder = model_folder(tmp_path, "unigram")
    content = bytearray((folder / "tokenizer.json").read_bytes())
    index %= len(content)
    content[index:] = bytes([byte]) if truncate else bytes([byte]) + content[index + 1 :]
    (folder / "tokenizer.json").write_bytes(content)
    code = "data.bad_tokenizer"
    try:
        codec, _ = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
        codec.encode_chats([[("user", "Hello"), ("assistant", "Hello, how are you?")]])
    except TraindeckError as error:
        code = error.code
    assert code == "data.bad_tokenizer"


def test_a_large_invalid_file_is_rejected_within_10_seconds(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b'{"version": "' + b"nonsense" * 13_000_000 + b'"}')
    start = time.monotonic()
    with pytest.raises(TraindeckError, match=r"tokenizer\.json cannot be loaded"):
        tokenizer.load_user_tokenizer(tmp_path / "tokenizer.json")
    assert time.monotonic() - start < 10


def test_a_file_over_the_size_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TraindeckError, match="larger than"):
        tokenizer.load_user_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_that_fails_on_some_characters_is_rejected(tmp_path: Path) -> None:
    word_level = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="<unk>"))
    (tmp_path / "tokenizer.json").write_text(word_level.to_str(), encoding="utf-8")
    with pytest.raises(TraindeckError, match="cannot encode every text"):
        tokenizer.load_user_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_an_invalid_companion_file_is_named_in_the_error(tmp_path: Path, content: str) -> None:
    (model_folder(tmp_path, "llama3") / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(TraindeckError, match=r"tokenizer_config\.json cannot be loaded"):
        tokenizer.load_user_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError, match="no such file"):
        tokenizer_files.find_tokenizer(str(tmp_path))


# --- transformers ----------------------------------------------------------------------------------

MODELS = {
    "none": None,
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 400},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 400},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 400},
}


def write_checkpoint_files(folder: Path, codec: Codec, task: Any = "sft") -> None:
    codec.save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_bytes(codec.config_json(task, 256))


# transformers 5 forces its Qwen2Tokenizer, with Qwen's regex, on models of the type qwen2.
LOAD_CASES = [(kind, model) for kind in REGEXES for model in MODELS if model != "qwen2" or kind == "qwen2"]


@pytest.mark.parametrize(("kind", "model"), LOAD_CASES)
def test_transformers_loads_a_trained_tokenizer_with_the_same_ids(tmp_path: Path, kind: str, model: str) -> None:
    transformers = pytest.importorskip("transformers")
    codec = train_codec(kind)
    write_checkpoint_files(tmp_path, codec)
    if MODELS[model]:
        (tmp_path / "config.json").write_text(json.dumps(MODELS[model]), encoding="utf-8")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, *UNUSUAL_TEXTS]:
        assert reference.encode(text, add_special_tokens=False) == codec.encode(text)
        assert reference.encode(text) == codec.encode(text)  # no special tokens are added
    assert (reference.eos_token_id, reference.pad_token_id, reference.model_max_length) == (2, 0, 256)
    messages = [{"role": "user", "content": "What is 1 plus 2?"}]
    prompt = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt == codec.encode_prompt("What is 1 plus 2?")
    assert reference.decode(codec.encode("it's , fine .")) == "it's , fine ."


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_a_user_tokenizer_from_a_checkpoint(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path / "model", family) / "tokenizer.json")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    write_checkpoint_files(checkpoint, codec)
    reference = transformers.AutoTokenizer.from_pretrained(checkpoint)
    loaded = Codec.load(checkpoint / "tokenizer.json")
    for text in [*TEXTS, "a  b", "naïve café", "👩‍👩‍👧 emoji", "日本語テキスト", "tab\tand\nlines\n"]:
        ids = [*loaded.prefix_ids, *loaded.encode(text)]
        assert reference.encode(text) == ids == [*codec.prefix_ids, *codec.encode(text)]
        assert codec.decode(codec.encode(text)) == text
        assert Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids == ids
    messages = [{"role": "user", "content": "What is 12 plus 30?"}]
    prompt = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt == loaded.encode_prompt("What is 12 plus 30?") == codec.encode_prompt("What is 12 plus 30?")
    assert (loaded.stop_token_ids, loaded.end_of_text, loaded.vocab_size) == (
        codec.stop_token_ids,
        codec.end_of_text,
        codec.vocab_size,
    )
    assert reference.eos_token_id in loaded.stop_token_ids
    config = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["add_bos_token"] == bool(codec.prefix_ids)
    assert reference.pad_token_id == loaded.pad_token_id


@pytest.mark.parametrize("family", ["mistral", "qwen2.5", "unigram"])
def test_a_checkpoint_records_its_task(tmp_path: Path, family: str) -> None:
    """Also if texts and answers end with the same token."""
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    for task in ("pretrain", "sft"):
        write_checkpoint_files(tmp_path, codec, task)
        assert tokenizer_files.read_task(tmp_path) == task
    config_of_traindeck_0_1 = '{"eos_token": "<|im_end|>"}'
    (tmp_path / "tokenizer_config.json").write_text(config_of_traindeck_0_1, encoding="utf-8")
    assert tokenizer_files.read_task(tmp_path) == "sft"
