"""Encodes the pieces of a text, cut at special tokens, to the ids that the whole text would have.

Some tokenizers write a space before the first word of each text, and must not do so in the middle of one. And some make
special tokens of text that only spells them, or have control tokens that they do not mark as special.

No torch, no Qt.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import numpy as np
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.encoder import Ids, TextEncoder

PrecededBy = Literal["start", "mark", "text"]  # nothing; a special token; text that is cut here

_PROBE: Final = "a\n \t\x00\ufffd\U0010fffdé你😀"  # a tokenizer that fails on unknown characters fails on some of these


class UnsupportedTokenizerError(Exception):
    """A tokenizer that cannot be used; the message says why."""


class PieceEncoder:
    """Ids of pieces of text, none of which is ever one of `hidden`.

    `hidden`: the tokens that only templates write. Raises `UnsupportedTokenizerError`.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[str], fast: bool = True) -> None:
        tokenizer = _hide_tokens(tokenizer, hidden)
        self.encoder = TextEncoder(tokenizer, fast)
        self._encoders: dict[PrecededBy, TextEncoder] = {"start": self.encoder}
        for preceded_by in ("mark", "text"):
            changed = _without_leading_space(tokenizer, preceded_by)
            self._encoders[preceded_by] = self.encoder if changed is tokenizer else TextEncoder(changed, fast)

    def encode(self, pieces: Sequence[tuple[str, PrecededBy]]) -> list[Ids]:
        """Ids of each piece. Raises `EncoderMismatchError`."""
        found: list[Ids] = [np.empty(0, np.uint32)] * len(pieces)
        for encoder in set(self._encoders.values()):
            numbers = [number for number, (_, place) in enumerate(pieces) if self._encoders[place] is encoder]
            for number, ids in zip(numbers, encoder.encode([pieces[number][0] for number in numbers]), strict=True):
                found[number] = ids
        return found


# --- tokens that no text becomes -------------------------------------------------------------------


def _hide_tokens(tokenizer: Tokenizer, hidden: Collection[str]) -> Tokenizer:
    """A tokenizer of the same ids that makes none of `hidden` of any text; the given one where it does so already."""
    tokenizer.encode_special_tokens = True
    try:
        tokenizer.encode(_PROBE, add_special_tokens=False)
    except Exception as error:  # tokenizers raises bare Exception
        raise UnsupportedTokenizerError(f"it cannot encode every text: {error}") from error
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.content in hidden and not token.special for token in added):
        tokenizer = _rename_tokens(tokenizer, hidden, ())
    reachable = _reachable_tokens(tokenizer, hidden)
    if reachable:
        tokenizer = _rename_tokens(tokenizer, hidden, reachable)
        reachable = _reachable_tokens(tokenizer, reachable)
    if reachable:
        raise UnsupportedTokenizerError(f"text can become its special token {reachable[0]}")
    return tokenizer


def _reachable_tokens(tokenizer: Tokenizer, names: Collection[str]) -> list[str]:
    """The tokens that a text becomes where it spells them."""
    unknown = getattr(tokenizer.model, "unk_token", None)
    found = []
    for name in names:
        number = tokenizer.token_to_id(name)
        texts = (name, f"a {name} b") if name and number is not None and name != unknown else ()
        if any(number in tokenizer.encode(text, add_special_tokens=False).ids for text in texts):
            found.append(name)
    return found


def _rename_tokens(tokenizer: Tokenizer, hidden: Collection[str], reachable: Collection[str]) -> Tokenizer:
    """Marks `hidden` as special, and gives those in `reachable` random names; all ids stay."""
    document = json.loads(tokenizer.to_str())
    names = {name: uuid.uuid4().hex for name in reachable}
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
    document["post_processor"] = None  # may name them, and is not used
    renamed = Tokenizer.from_str(json.dumps(document))
    renamed.encode_special_tokens = True
    return renamed


# --- no space within a text --------------------------------------------------------------------------


def _without_leading_space(tokenizer: Tokenizer, preceded_by: PrecededBy) -> Tokenizer:
    """One that writes no space of its own where the whole text would have none; the given one if it never does."""
    parts = {"normalizer": tokenizer.normalizer, "pre_tokenizer": tokenizer.pre_tokenizer}
    states = {name: json.loads(part.__getstate__()) if part else None for name, part in parts.items()}
    normalizer = states["normalizer"]
    changed = {
        "normalizer": _drop_prepend(normalizer) if normalizer and preceded_by == "text" else normalizer,
        "pre_tokenizer": _drop_prefix_space(states["pre_tokenizer"], preceded_by),
    }
    if changed == states:
        return tokenizer
    return Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **changed}))


def _drop_prepend(state: dict[str, Any]) -> dict[str, Any] | None:
    if state["type"] == "Sequence":
        return {**state, "normalizers": [one for one in state["normalizers"] if one["type"] != "Prepend"]}
    return None if state["type"] == "Prepend" else state


def _drop_prefix_space(
    state: dict[str, Any] | None, preceded_by: PrecededBy, first: bool = True
) -> dict[str, Any] | None:
    """`first`: nothing has split the text yet, so that a space is written before the text, not before each part."""
    if state is None:
        return None
    if state["type"] == "Sequence":
        steps = [
            _drop_prefix_space(step, preceded_by, first and not number)
            for number, step in enumerate(state["pretokenizers"])
        ]
        return {**state, "pretokenizers": steps}
    within = first and preceded_by == "text"
    scheme = state.get("prepend_scheme")
    if scheme == "first" or (scheme == "always" and within):
        return {**state, "prepend_scheme": "never"}
    if state["type"] == "ByteLevel" and within:
        return {**state, "add_prefix_space": False}
    return state
