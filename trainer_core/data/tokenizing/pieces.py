"""Encodes the pieces of a text, cut at special tokens, to the ids that the whole text would have.

Some tokenizers write a space before the first word of each text, and must not do so in the middle of one. And some make
special tokens of text that only spells them, or have control tokens that they do not mark as special.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import pairwise
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
        try:
            possible = tokenizer.encode(_PROBE, add_special_tokens=False).ids
        except Exception as error:  # tokenizers raises bare Exception
            raise UnsupportedTokenizerError(f"it cannot encode every text: {error}") from error
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._is_hidden = np.zeros(max(vocabulary.values()) + 1, np.bool_)  # by id
        self._is_hidden[[vocabulary[name] for name in hidden if name in vocabulary]] = True
        self._is_hidden[possible] = False  # such as `<unk>`
        self.encoder = TextEncoder(tokenizer, fast)
        self._encoders: dict[PrecededBy, TextEncoder] = {"start": self.encoder}
        for preceded_by in ("mark", "text"):
            changed = _without_leading_space(tokenizer, preceded_by)
            self._encoders[preceded_by] = self.encoder if changed is tokenizer else TextEncoder(changed, fast)

    def encode(self, pieces: Sequence[tuple[str, PrecededBy]]) -> list[Ids]:
        """Ids of each piece. Raises `EncoderMismatchError` and `UnsupportedTokenizerError`."""
        found: list[Ids] = [np.empty(0, np.uint32)] * len(pieces)
        for encoder in set(self._encoders.values()):
            numbers = [number for number, (_, place) in enumerate(pieces) if self._encoders[place] is encoder]
            for number, ids in zip(numbers, encoder.encode([pieces[number][0] for number in numbers]), strict=True):
                found[number] = ids
        if found and self._is_hidden[np.concatenate(found)].any():
            return [
                self._encode_cut(*piece) if self._is_hidden[ids].any() else ids
                for ids, piece in zip(found, pieces, strict=True)
            ]
        return found

    def _encode_cut(self, text: str, preceded_by: PrecededBy) -> Ids:
        """Ids of a text that spells hidden tokens: it is cut within their names."""
        encoding = self._encoders[preceded_by].tokenizer.encode(text, add_special_tokens=False)
        cuts = [0]
        for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if self._is_hidden[number]:
                if stop - start < 2:
                    raise UnsupportedTokenizerError(f"text can become its special token {text[start:stop]}")
                cuts.append(start + 1)
        if len(cuts) == 1:
            return np.array(encoding.ids, np.uint32)
        parts = [text[start:stop] for start, stop in pairwise([*cuts, len(text)])]
        return np.concatenate(
            [self._encode_cut(part, "text" if number else preceded_by) for number, part in enumerate(parts)]
        )


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
