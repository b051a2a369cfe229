"""Small model folders with the tokenizer and chat template of each model family."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

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


def byte_level(pattern: Any, special: Sequence[str | AddedToken], vocab_size: int = 420) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(REGEXES[pattern]), behavior="isolated")
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


def _keep_added_tokens(document: dict[str, Any], contents: set[str]) -> None:
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in contents]


def sentencepiece_bpe(
    special: Sequence[str], leading_space: Literal["normalizer", "pre_tokenizer", "none"]
) -> Tokenizer:
    """BPE with byte fallback, as converted from SentencePiece.

    `leading_space` is what prepends a space to a text: "normalizer" (Llama 2), "pre_tokenizer" (Mistral) or "none"
    (Gemma).
    """
    special_tokens = ["<unk>", *special, *_byte_tokens()]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special_tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    _keep_added_tokens(document, {"<unk>", *special})
    tokenizer = Tokenizer.from_str(json.dumps(document))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if leading_space == "normalizer":
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif leading_space == "pre_tokenizer":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(steps if leading_space == "none" else [*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def unigram(special: Sequence[str], scheme: Any = "always") -> Tokenizer:
    """Unigram model as converted from SentencePiece: special tokens are pieces, so text can spell them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    special_tokens = ["<unk>", *special, *_byte_tokens()]
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=special_tokens, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    document["model"]["byte_fallback"] = True
    _keep_added_tokens(document, {"<unk>", *special})
    tokenizer = Tokenizer.from_str(json.dumps(document))
    metaspace = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    return tokenizer


def template(name: str) -> str:
    """Return a chat template of chat_templates/, which imitates that of a model family or, in published/, is one.

    llama2: role markers are plain text, and a space precedes the end-of-turn token. phi3: markers strip the white
    space that follows them, and an end of text follows the last turn. deepseek: markers are not special tokens, and
    reasoning is removed from answers. alpaca: no control tokens.
    """
    return (Path(__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


# --- families --------------------------------------------------------------------------------------


def _with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    """Add the post-processor of published tokenizers, which prepends `bos` to each text."""
    ids = [(bos, tokenizer.token_to_id(bos))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    return tokenizer


def _llama3() -> tuple[Tokenizer, dict[str, Any]]:
    bos = "<|begin_of_text|>"
    tokens = [bos, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = _with_bos(byte_level("llama-bpe", tokens), bos)
    return tokenizer, {"bos_token": bos, "eos_token": "<|eot_id|>", "chat_template": template("published/llama3_2")}


def _qwen(name: str) -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = byte_level("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokens = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens])
    config = {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return tokenizer, {**config, "chat_template": template(name)}


def _smollm2() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = byte_level("gpt-2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template("published/smollm2")}
    return tokenizer, config


def _llama31() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer, config = _llama3()
    tokenizer.add_special_tokens(["<|eom_id|>", "<|python_tag|>"])
    return tokenizer, {**config, "chat_template": template("published/llama3_2")}


def _mistral_tools() -> tuple[Tokenizer, dict[str, Any]]:
    names = ["INST", "/INST", "TOOL_CALLS", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_RESULTS", "/TOOL_RESULTS"]
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>", *(f"[{name}]" for name in names)], "pre_tokenizer"), "<s>")
    config = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tokenizer, {**config, "chat_template": template("mistral_tools")}


def _hermes() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer, config = _llama31()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    templates = [
        {"name": "default", "template": "{{bos_token}}" + CHATML_TEMPLATE},
        {"name": "tool_use", "template": template("hermes_tools")},
    ]
    return tokenizer, {**config, "eos_token": "<|im_end|>", "chat_template": templates}


def _mistral() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>", "[INST]", "[/INST]"], "pre_tokenizer"), "<s>")
    return tokenizer, {
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template("mistral"),
    }


def _llama2() -> tuple[Tokenizer, dict[str, Any]]:
    config = {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = _with_bos(sentencepiece_bpe(["<s>", "</s>"], "normalizer"), "<s>")
    return tokenizer, {**config, "add_bos_token": True, "add_eos_token": False, "chat_template": template("llama2")}


def _gemma() -> tuple[Tokenizer, dict[str, Any]]:
    tokens = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentencepiece_bpe(tokens, "none")
    tokenizer.add_tokens([AddedToken("\n" * n, special=False, normalized=False) for n in range(1, 8)])
    return _with_bos(tokenizer, "<bos>"), {
        "add_bos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": template("gemma"),
    }


def _phi3() -> tuple[Tokenizer, dict[str, Any]]:
    tokens = [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "assistant", "system", "end")]
    tokenizer = sentencepiece_bpe(["<s>", "</s>"], "normalizer")
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True), *tokens])
    return tokenizer, {"bos_token": "<s>", "eos_token": "<|endoftext|>", "chat_template": template("phi3")}


def _deepseek() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = byte_level("qwen2", ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokens = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # only tokenizer_config.json requests BOS
    config = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "add_bos_token": True}
    return tokenizer, {**config, "chat_template": template("deepseek")}


def _unigram_chatml() -> tuple[Tokenizer, dict[str, Any]]:
    return unigram(["<s>", "</s>"]), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


FAMILIES: Final[dict[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]]] = {
    "llama3": _llama3,
    "qwen2.5": lambda: _qwen("published/qwen2_5"),
    "qwen3": lambda: _qwen("published/qwen3"),
    "mistral": _mistral,
    "llama2": _llama2,
    "gemma": _gemma,
    "phi3": _phi3,
    "deepseek": _deepseek,
    "unigram": _unigram_chatml,
}


# With templates that write tool calls, like those of Qwen2.5, Qwen3, Llama 3.1, Mistral 0.3 and Hermes 3.
TOOL_FAMILIES: Final[dict[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]]] = {
    "qwen2.5-tools": lambda: _qwen("published/qwen2_5"),
    "qwen3-tools": lambda: _qwen("published/qwen3"),
    "llama3.1-tools": _llama31,
    "mistral-tools": _mistral_tools,
    "hermes-tools": _hermes,
}


@cache
def _build_family(family: str) -> tuple[str, dict[str, Any]]:
    tokenizer, config = {**FAMILIES, **TOOL_FAMILIES, "smollm2": _smollm2}[family]()
    return tokenizer.to_str(), config


def model_folder(folder: Path, family: str, **changed: Any) -> Path:
    """Write the tokenizer files of a family. `changed` replaces entries of tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, config = _build_family(family)
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
    """Load the tokenizer of a family with transformers. Without a chat template, it gets ChatML."""
    transformers = pytest.importorskip("transformers")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder(Path(folder), family))
    if tokenizer.chat_template is None:
        tokenizer.add_special_tokens({"additional_special_tokens": [IM_START, IM_END]})
        tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer
