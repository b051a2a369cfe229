"""Small model folders: a tokenizer and a chat template like those of each model family."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.data.tokenizing.conversations import CHATML_TEMPLATE, IM_END, IM_START
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer

CORPUS: Final = [
    "def add(a, b):\n    return a + b  # it's 12345\n",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。\n",
    "What is 12 plus 30? It's 42, they'LL say. user assistant system Hello, how are you today?\n\n",
    "The quick brown fox jumps over the lazy dog. Answer: yes.\n",
] * 20


# --- tokenizers ------------------------------------------------------------------------------------


def byte_level(kind: Any, special: Sequence[str | AddedToken], vocab_size: int = 420) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(REGEXES[kind]), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_bpe(special: Sequence[str], way: str) -> Tokenizer:
    """BPE as converted from SentencePiece, with bytes for unknown characters.

    `way`: prepend (Llama 2: a normalizer writes a space first), first (Mistral: the pre-tokenizer, at the
    very start), gemma (no space is written).
    """
    known = ["<unk>", *special, *_byte_tokens()]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=known, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    named = {"<unk>", *special}
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in named]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if way == "prepend":
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif way == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(parts if way == "gemma" else [*parts, decoders.Strip(" ", 1, 0)])
    return tokenizer


def unigram(special: Sequence[str], scheme: Any = "always") -> Tokenizer:
    """As converted from SentencePiece: its special tokens are pieces that text can spell."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    known = ["<unk>", *special, *_byte_tokens()]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=known, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    document["model"]["byte_fallback"] = True
    named = {"<unk>", *special}
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in named]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    metaspace = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    return tokenizer


def template(name: str) -> str:
    """One of chat_templates/, each in the manner of a family.

    llama2: marks that are plain text, and a space before the token that ends a turn. phi3: marks that take
    the white space after them, and an end of text after the last turn. deepseek: marks that are not called
    special, and reasoning that is left out of answers. alpaca: no mark at all.
    """
    return (Path(__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


# --- families --------------------------------------------------------------------------------------


def _with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    """With the post-processor that published tokenizers have: `bos` before each text."""
    special = [(bos, tokenizer.token_to_id(bos))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=special)
    return tokenizer


def _llama3() -> tuple[Tokenizer, dict[str, Any]]:
    bos = "<|begin_of_text|>"
    marks = [bos, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = _with_bos(byte_level("llama-bpe", marks), bos)
    return tokenizer, {"bos_token": bos, "eos_token": "<|eot_id|>", "chat_template": template("llama3")}


def _qwen(name: str) -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = byte_level("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    words = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    names = {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return tokenizer, {**names, "chat_template": template(name)}


def _llama31() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer, config = _llama3()
    tokenizer.add_special_tokens(["<|eom_id|>", "<|python_tag|>"])
    return tokenizer, {**config, "chat_template": template("llama31_tools")}


def _mistral_tools() -> tuple[Tokenizer, dict[str, Any]]:
    marks = ["INST", "/INST", "TOOL_CALLS", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_RESULTS", "/TOOL_RESULTS"]
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>", *(f"[{mark}]" for mark in marks)], "first"), "<s>")
    names = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tokenizer, {**names, "chat_template": template("mistral_tools")}


def _hermes() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer, config = _llama31()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    templates = [
        {"name": "default", "template": "{{bos_token}}" + CHATML_TEMPLATE},
        {"name": "tool_use", "template": template("hermes_tools")},
    ]
    return tokenizer, {**config, "eos_token": "<|im_end|>", "chat_template": templates}


def _mistral() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>", "[INST]", "[/INST]"], "first"), "<s>")
    return tokenizer, {
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template("mistral"),
    }


def _llama2() -> tuple[Tokenizer, dict[str, Any]]:
    names = {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>"], "prepend"), "<s>")
    return tokenizer, {**names, "add_bos_token": True, "add_eos_token": False, "chat_template": template("llama2")}


def _gemma() -> tuple[Tokenizer, dict[str, Any]]:
    marks = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentencepiece_bpe(marks, "gemma")
    tokenizer.add_tokens([AddedToken("\n" * n, special=False, normalized=False) for n in range(1, 8)])
    return _with_bos(tokenizer, "<bos>"), {
        "add_bos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": template("gemma"),
    }


def _phi3() -> tuple[Tokenizer, dict[str, Any]]:
    marks = [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "assistant", "system", "end")]
    tokenizer = sentencepiece_bpe(["<s>", "</s>"], "prepend")
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True), *marks])
    return tokenizer, {"bos_token": "<s>", "eos_token": "<|endoftext|>", "chat_template": template("phi3")}


def _deepseek() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = byte_level("qwen2", ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    words = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # only the configuration asks for bos_token
    names = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "add_bos_token": True}
    return tokenizer, {**names, "chat_template": template("deepseek")}


def _unigram_chatml() -> tuple[Tokenizer, dict[str, Any]]:
    return unigram(["<s>", "</s>"]), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


FAMILIES: Final[dict[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]]] = {
    "llama3": _llama3,
    "qwen2.5": lambda: _qwen("qwen25"),
    "qwen3": lambda: _qwen("qwen3"),
    "mistral": _mistral,
    "llama2": _llama2,
    "gemma": _gemma,
    "phi3": _phi3,
    "deepseek": _deepseek,
    "unigram": _unigram_chatml,
}


# With templates that write tool calls, in the manner of Qwen2.5, Qwen3, Llama 3.1, Mistral 0.3 and Hermes 3.
TOOL_FAMILIES: Final[dict[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]]] = {
    "qwen2.5-tools": lambda: _qwen("qwen25_tools"),
    "qwen3-tools": lambda: _qwen("qwen3_tools"),
    "llama3.1-tools": _llama31,
    "mistral-tools": _mistral_tools,
    "hermes-tools": _hermes,
}


@cache
def _made(family: str) -> tuple[str, dict[str, Any]]:
    tokenizer, config = {**FAMILIES, **TOOL_FAMILIES}[family]()
    return tokenizer.to_str(), config


def model_folder(folder: Path, family: str, **changed: Any) -> Path:
    """A folder with the tokenizer files of a family; `changed` replaces entries of its tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, config = _made(family)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config, **changed}
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@cache
def load_codec(family: str) -> Codec:
    with tempfile.TemporaryDirectory() as folder:
        return load_user_tokenizer(model_folder(Path(folder), family) / "tokenizer.json")[0]


@cache
def load_transformers(family: str) -> Any:
    """The tokenizer that transformers loads from the same folder; with ChatML if it has no chat template."""
    transformers = pytest.importorskip("transformers")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder(Path(folder), family))
    if tokenizer.chat_template is None:
        tokenizer.add_special_tokens({"additional_special_tokens": [IM_START, IM_END]})
        tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer
