"""Encodes the pieces of a text, cut at marks, to the ids that the whole text would have.

Two things stand in the way. Some tokenizers write a space before the first word of whatever they are
given, and must not do so in the middle of a text. And some make special tokens of text that only spells
them, or have marks that they do not call special.

No torch, no Qt.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.chat_template import PrecededBy
from trainer_core.data.tokenizing.encoder import TextEncoder

Ids = npt.NDArray[np.uint32]

_PROBE: Final = "a\n \t\x00\ufffd\U0010fffdé你😀"  # a tokenizer that fails on unknown characters fails on some of these


class Unfit(Exception):  # noqa: N818 - the caller knows the path and words it
    """A tokenizer that cannot be used; the message says why."""


class PieceEncoder:
    """Ids of pieces of text, none of which is ever one of `hidden`.

    `hidden`: the tokens that only templates write. Raises `Unfit`.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[str], fast: bool = True) -> None:
        deaf = _deaf(tokenizer, hidden)
        after_mark, within_text = (_continuing(deaf, place) for place in ("mark", "text"))
        self.encoder = TextEncoder(deaf, fast)
        self._encoders: dict[PrecededBy, TextEncoder] = {"start": self.encoder}
        self._encoders["mark"] = self.encoder if after_mark is deaf else TextEncoder(after_mark, fast)
        self._encoders["text"] = self.encoder if within_text is deaf else TextEncoder(within_text, fast)

    def encode(self, pieces: Sequence[tuple[str, PrecededBy]]) -> list[Ids]:
        """Each piece with what stands before it: nothing, a mark, or text. Raises `EncoderMismatchError`."""
        encoders = set(self._encoders.values()) if pieces else set()
        if len(encoders) == 1:
            return self.encoder.encode_many([text for text, _ in pieces])
        found: list[Ids] = [np.empty(0, dtype=np.uint32)] * len(pieces)
        for encoder in encoders:
            mine = [number for number, (_, place) in enumerate(pieces) if self._encoders[place] is encoder]
            for number, ids in zip(mine, encoder.encode_many([pieces[number][0] for number in mine]), strict=True):
                found[number] = ids
        return found


# --- tokens that no text becomes -------------------------------------------------------------------


def _deaf(tokenizer: Tokenizer, hidden: Collection[str]) -> Tokenizer:
    """A tokenizer of the same ids that makes none of `hidden` of any text; the given one where it does so already."""
    tokenizer.encode_special_tokens = True
    try:
        tokenizer.encode(_PROBE, add_special_tokens=False)
    except Exception as error:  # tokenizers raises bare Exception
        raise Unfit(f"it cannot encode every text: {error}") from error
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.content in hidden and not token.special for token in added):
        tokenizer = _rebuilt(tokenizer, hidden, ())
    reached = _reached(tokenizer, hidden)
    if reached:
        tokenizer = _rebuilt(tokenizer, hidden, reached)
        reached = _reached(tokenizer, reached)
    if reached:
        raise Unfit(f"text can become its special token {reached[0]}")
    return tokenizer


def _reached(tokenizer: Tokenizer, hidden: Collection[str]) -> list[str]:
    """The tokens that come out where their names stand in a text."""
    names = [name for name in hidden if name and tokenizer.token_to_id(name) is not None]
    texts = [text for name in names for text in (name, f"a {name} b")]
    ids = [set(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    numbers = [tokenizer.token_to_id(name) for name in names]
    unknown = getattr(tokenizer.model, "unk_token", None)
    return [
        name
        for name, number, alone, among in zip(names, numbers, ids[::2], ids[1::2], strict=True)
        if (number in alone or number in among) and name != unknown
    ]


def _rebuilt(tokenizer: Tokenizer, hidden: Collection[str], reached: Collection[str]) -> Tokenizer:
    """With `hidden` special, and with those in `reached` under names that nobody can write; all ids stay."""
    document = json.loads(tokenizer.to_str())
    names = {name: uuid.uuid4().hex for name in reached}
    for token in document["added_tokens"]:
        token["special"] |= token["content"] in hidden
        token["content"] = names.get(token["content"], token["content"])
    model = document["model"]
    if isinstance(model["vocab"], list):  # Unigram: pairs of name and score
        model["vocab"] = [[names.get(name, name), score] for name, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(name, name): number for name, number in model["vocab"].items()}
    if model.get("merges"):
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & names.keys()]
    document["post_processor"] = None  # may name them, and is not asked
    rebuilt = Tokenizer.from_str(json.dumps(document))
    rebuilt.encode_special_tokens = True
    return rebuilt


# --- no space where a text goes on -----------------------------------------------------------------


def _continuing(tokenizer: Tokenizer, place: PrecededBy) -> Tokenizer:
    """One that writes no space of its own where the whole text would have none; the given one if it never does."""
    parts = {"normalizer": tokenizer.normalizer, "pre_tokenizer": tokenizer.pre_tokenizer}
    states = {name: json.loads(part.__getstate__()) if part else None for name, part in parts.items()}
    wanted = {
        "normalizer": _without_prepending(states["normalizer"]) if place == "text" else states["normalizer"],
        "pre_tokenizer": _without_prefix(states["pre_tokenizer"], place),
    }
    if wanted == states:
        return tokenizer
    changed = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **wanted}))
    changed.encode_special_tokens = True
    return changed


def _without_prepending(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None or state["type"] == "Prepend":
        return None
    if state["type"] != "Sequence":
        return state
    return {**state, "normalizers": [one for one in state["normalizers"] if one["type"] != "Prepend"]}


def _without_prefix(state: dict[str, Any] | None, place: PrecededBy, first: bool = True) -> dict[str, Any] | None:
    """`first`: nothing has split the text yet, so that a space is written before the text, not before each part."""
    if state is None:
        return None
    if state["type"] == "Sequence":
        steps = [
            _without_prefix(step, place, first and not number) for number, step in enumerate(state["pretokenizers"])
        ]
        return {**state, "pretokenizers": steps}
    within = first and place == "text"
    scheme = state.get("prepend_scheme")
    if scheme == "first" or (scheme == "always" and within):
        return {**state, "prepend_scheme": "never"}
    if state["type"] == "ByteLevel" and state["add_prefix_space"] and within:
        return {**state, "add_prefix_space": False}
    return state
