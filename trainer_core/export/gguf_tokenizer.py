"""A tokenizer as metadata of a GGUF file.

llama.cpp has its own tokenizers: `gpt2`, byte-level BPE with a named way to split text (`tokenizer.ggml.pre`), and
`llama`, SentencePiece's BPE. A tokenizer.json that does something else is refused, or exported with a warning that says
what differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from gguf import GGUFWriter, TokenType

from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    post_processor_ids,
    read_config,
    read_task,
)
from trainer_core.export.checkpoint_files import read_json
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter

_TEKKEN: Final = (  # of Mistral NeMo
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final = {_TEKKEN: "tekken", **{pattern: name for name, pattern in REGEXES.items()}}
_DIGITS: Final = {"type": "Digits", "individual_digits": True}
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE: Final = "▁"  # SentencePiece's
_REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_PREPEND: Final = {"type": "Prepend", "prepend": _SPACE}
_END_KEYS: Final = ("eos", "eot", "eom")  # of tokens that end an answer or a text; llama.cpp stops at each

LeadingSpace = Literal["always", "first", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokenizer:
    """Values of the keys below `tokenizer.`."""

    model: Literal["gpt2", "llama"] = "gpt2"
    pre: str = "default"
    tokens: list[str]
    types: list[TokenType]
    merges: Sequence[str] = ()  # of `gpt2`
    scores: Sequence[float] = ()  # of `llama`
    ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool = False
    chat_templates: Mapping[str, str]
    differences: list[str]  # reasons why llama.cpp encodes some texts differently


def read(checkpoint: Path, codec: Codec, rows: int) -> GgufTokenizer:
    """The tokenizer of a checkpoint for an embedding of `rows` rows. Raises `export.tokenizer`."""
    config, named = read_config(checkpoint / TOKENIZER_FILE), read_json(checkpoint / CONFIG_FILE)
    document = json.loads(codec.tokenizer.to_str())
    model = document["model"]
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _tokenizer_error("it is not byte-level or SentencePiece BPE")
    tokens, types = _vocabulary(codec, rows, is_sentencepiece=bool(model.get("byte_fallback")))
    found = GgufTokenizer(
        tokens=tokens,
        types=types,
        ids=_special_ids(codec, named, model.get("unk_token")),
        add_bos=bool(codec.prefix_ids),
        add_eos=bool(post_processor_ids(codec.tokenizer)[1]),
        chat_templates={"default": config.template, "tool_use": config.tool_template},
        differences=["llama.cpp strips no white space around special tokens"] if _strips_space(document) else [],
    )
    if model.get("byte_fallback"):
        return _with_scores(found, document, is_chat=read_task(checkpoint) == "sft")
    return _with_merges(found, document)


def add(writer: GGUFWriter, tokenizer: GgufTokenizer, reporter: Reporter) -> None:
    """Add all keys below `tokenizer.`. Warns with `export.tokens_differ`."""
    for reason in tokenizer.differences:
        reporter.warn("export.tokens_differ", reason=reason)
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    if tokenizer.model == "gpt2":
        writer.add_token_merges(tokenizer.merges)
    else:
        writer.add_token_scores(tokenizer.scores)
        writer.add_add_space_prefix(tokenizer.add_space_prefix)
    for key, number in tokenizer.ids.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", number)
    writer.add_add_bos_token(tokenizer.add_bos)
    writer.add_add_eos_token(tokenizer.add_eos)
    templates = tokenizer.chat_templates.items()
    writer.add_chat_template([{"name": name, "template": source} for name, source in templates if source])


# --- of both kinds ---------------------------------------------------------------------------------------------


def _vocabulary(codec: Codec, rows: int, is_sentencepiece: bool) -> tuple[list[str], list[TokenType]]:
    """Tokens and their types by id; ids without a token are unused."""
    tokens, types = [f"[PAD{number}]" for number in range(rows)], [TokenType.UNUSED] * rows
    added = {token.content for token in codec.tokenizer.get_added_tokens_decoder().values()}
    for token, number in codec.tokenizer.get_vocab(with_added_tokens=True).items():
        if number >= rows:  # the model cannot read it
            continue
        if token in codec.control_tokens:
            kind = TokenType.CONTROL
        elif token in added:
            kind = TokenType.USER_DEFINED
            token = token.replace(_SPACE, " ") if is_sentencepiece else token
        elif is_sentencepiece and _BYTE.fullmatch(token):
            kind = TokenType.BYTE
        else:
            kind = TokenType.NORMAL
        tokens[number], types[number] = token, kind
    return tokens, types


def _special_ids(codec: Codec, named: Mapping[str, Any], unknown: str | None) -> dict[str, int]:
    """Ids by key. Those that end a text or an answer are three at most: eos, eot and eom."""

    def id_of(token: object, default: int) -> int:
        number = codec.tokenizer.token_to_id(token) if isinstance(token, str) else None
        return default if number is None else int(number)

    bos = codec.prefix_ids[0] if codec.prefix_ids else id_of(named.get("bos_token"), codec.end_of_text)
    ids = {"bos": bos, "padding": codec.pad_token_id}
    if unknown is not None:
        ids["unknown"] = id_of(unknown, 0)
    ends = [id_of(named.get("eos_token"), codec.end_of_text), codec.end_of_turn, *sorted(codec.stop_token_ids)]
    return {**ids, **dict(zip(_END_KEYS, dict.fromkeys(ends), strict=False))}


def _strips_space(document: dict[str, Any]) -> bool:
    return any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in document["added_tokens"])


def _merge_ranks(document: dict[str, Any]) -> dict[tuple[str, str], int]:
    merges = document["model"]["merges"]  # older files have texts with a space
    pairs = (tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in merges)
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


def _steps(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Normalizers or pre-tokenizers in order."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    parts: list[dict[str, Any]] = component.get("normalizers") or component["pretokenizers"]
    return [step for one in parts for step in _steps(one)]


def _tokenizer_error(reason: str) -> TraindeckError:
    return TraindeckError("export.tokenizer", reason=reason)


# --- byte-level BPE --------------------------------------------------------------------------------------------


def _with_merges(found: GgufTokenizer, document: dict[str, Any]) -> GgufTokenizer:
    normalizers = [step["type"] for step in _steps(document["normalizer"])]
    if normalizers not in ([], ["NFC"]):
        raise _tokenizer_error("it normalizes text in a way that llama.cpp does not have")
    differences = ["llama.cpp does not apply NFC"] if normalizers else []
    return replace(
        found,
        pre=_split_name(_steps(document["pre_tokenizer"])),
        merges=[f"{left} {right}" for left, right in _merge_ranks(document)],
        differences=[*found.differences, *differences],
    )


def _split_name(steps: list[dict[str, Any]]) -> str:
    """llama.cpp's name of the way that text is split before merging. Raises `export.tokenizer` for an unknown one."""
    *splits, last = steps or [{"type": ""}]
    if last["type"] == "ByteLevel" and not last["add_prefix_space"]:
        if last["use_regex"]:  # GPT-2's
            found = {0: "gpt-2", 1: "smollm"}.get(len(splits))
            if found == "gpt-2" or (found and splits[0] == _DIGITS):
                return found
        elif len(splits) == 1 and splits[0]["type"] == "Split" and splits[0]["behavior"] == "Isolated":
            pattern = str(splits[0]["pattern"].get("Regex"))
            if pattern in _SPLITS and not splits[0]["invert"]:
                return _SPLITS[pattern]
    raise _tokenizer_error("it splits text in a way that llama.cpp has no name for")


# --- SentencePiece BPE -----------------------------------------------------------------------------------------


def _with_scores(found: GgufTokenizer, document: dict[str, Any], is_chat: bool) -> GgufTokenizer:
    """llama.cpp merges the neighbours whose union is the token with the highest score."""
    ranks, space, differences = _merge_ranks(document), _leading_space(document), []
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(ranks):
        scores.setdefault(left + right, -float(rank))
    if space == "first":
        differences.append(
            "llama.cpp writes no space before a text without a chat template"
            if is_chat
            else "llama.cpp writes a space after special tokens"
        )
    if not _are_complete(ranks, document):
        differences.append("its merges are not those of SentencePiece")
    return replace(
        found,
        model="llama",
        types=[
            TokenType.UNKNOWN if number == found.ids.get("unknown") else kind for number, kind in enumerate(found.types)
        ],
        scores=[scores.get(token, -float(len(ranks))) for token in found.tokens],
        # A chat begins with a special token, after which `first` writes no space.
        add_space_prefix=space == "always" or (space == "first" and not is_chat),
        differences=[*found.differences, *differences],
    )


def _leading_space(document: dict[str, Any]) -> LeadingSpace:
    """Before which texts a space is written: all between special tokens, the first one, or none.

    Raises `export.tokenizer` for other normalizers and pre-tokenizers than those of models from SentencePiece.
    """
    normalizers, splits = (_steps(document[name]) for name in ("normalizer", "pre_tokenizer"))
    if not normalizers and len(splits) == 1 and splits[0]["type"] == "Metaspace":
        scheme: LeadingSpace = splits[0].get("prepend_scheme", "always")
        return scheme
    if all(step["type"] == "Split" and step["pattern"] == {"String": " "} for step in splits):  # no space is left
        if normalizers == [_REPLACE]:
            return "never"
        if normalizers == [_PREPEND, _REPLACE]:
            return "always"
    raise _tokenizer_error("it normalizes text in a way that llama.cpp does not have")


def _are_complete(ranks: Mapping[tuple[str, str], int], document: dict[str, Any]) -> bool:
    """Whether all pairs of tokens whose union is a token are merged, in the order of the unions."""
    vocabulary, added = document["model"]["vocab"], {token["content"] for token in document["added_tokens"]}
    unions = [left + right for left, right in ranks]
    if len(set(unions)) != sum(one != other for one, other in pairwise(["", *unions])):
        return False
    return all(
        (token[:cut], token[cut:]) in ranks
        for token in vocabulary
        if token not in added and not _BYTE.fullmatch(token)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
