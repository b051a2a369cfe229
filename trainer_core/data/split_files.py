"""Which documents are held out, and how the documents of a split stand one after the other.

No torch, no Qt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Document
from trainer_core.data.encode_batch import Encoded
from trainer_core.data.order import keyed_hash
from trainer_core.data.store import NO_NUMBERS, Block, State, Writer
from trainer_core.data.tokenizing.tokenizer import Codec

_PARTS: Final = 1_000_000  # resolution of validation_fraction
_BEGINNING: Final = 240  # characters kept of a text
_TRAIN_BEGINNINGS: Final = 64
_EXAMPLES: Final = 4096  # held-out texts to choose prompts from

Mask = npt.NDArray[np.bool_]


class HeldOut:
    """Which units are for validation: one at a hashed place in every `1 / fraction`.

    A hash of each number alone would leave a small data set without any by chance.
    """

    def __init__(self, fraction: float) -> None:
        self._share = round(fraction * _PARTS)

    def __contains__(self, unit: int) -> bool:
        return bool(self.among(np.array([unit]))[0])

    def among(self, units: npt.NDArray[Any]) -> Mask:
        """Which of these are."""
        if not self._share or not len(units):
            return np.zeros(len(units), np.bool_)
        # numpy 1 counts in 32 bits on Windows, where a product would overflow.
        blocks, place = np.unique(units.astype(np.int64) * self._share // _PARTS, return_inverse=True)
        chosen = np.array([self._chosen(block) for block in blocks.tolist()], np.int64)
        found: Mask = chosen[place] == units
        return found

    def _chosen(self, block: int) -> int:
        start, end = -(-block * _PARTS // self._share), -(-(block + 1) * _PARTS // self._share)
        return start + keyed_hash("validation", block) % (end - start)


def example_rank(number: int) -> int:
    """Orders held-out documents at random. The first ones in this order are a uniform sample of any number of them."""
    return keyed_hash("examples", number)


def is_example(number: int, documents: int) -> bool:
    """Whether a document belongs to a uniform sample of about `_EXAMPLES` of `documents` (of fewer: all).

    A document that is left out of a sample of few documents is left out of every sample of more.
    """
    return documents <= _EXAMPLES or example_rank(number) < 2**64 * _EXAMPLES // documents


class SplitFiles:
    """Writes the documents of one split.

    A document of plain text begins with the tokens that the tokenizer asks for (`<bos>`, say). A text ends with
    `<|endoftext|>`, or what this tokenizer has for it.
    """

    def __init__(self, folder: Path, codec: Codec, state: State | None, validation: bool, keep_tokens: bool) -> None:
        state = state or {}
        self._writer = Writer(folder, codec.vocab_size, state, keep_tokens)
        self._end_of_text, self._validation, self._keep_tokens = codec.end_of_text, validation, keep_tokens
        self._prefix = np.array(codec.prefix, np.int64)
        # Of the document written last. A text that came in parts is ended when the next one begins.
        self._number, self._unit = state.get("number", -1), state.get("unit", -1)

    def add(self, batch: list[Document], encoded: Encoded, wanted: Mask) -> None:
        """Append the documents of a batch that are `wanted` here."""
        documents = [batch[index] for index in np.flatnonzero(wanted).tolist()]
        lengths = encoded.lengths[wanted]
        whole = bool(wanted.all())
        ids = encoded.ids if whole else encoded.ids[np.repeat(wanted, encoded.lengths)]
        places = NO_NUMBERS if self._keep_tokens else np.array([(one.file, one.row) for one in documents], np.int64)
        if len(encoded.span_counts):
            spans = encoded.spans if whole else encoded.spans[np.repeat(wanted, encoded.span_counts)]
            begins, counts = np.cumsum(lengths) - lengths, encoded.span_counts[wanted]
            kept = self._kept(documents) if self._validation else []
            texts: list[dict[str, Any]] = [{"turns": one.turns, "number": number} for number, one in kept]
            self._writer.add_block(Block(ids, begins, spans, counts, texts, places))
            return
        ids, begins, new = self._ended(documents, lengths, ids)
        firsts = [document for document, is_new in zip(documents, new.tolist(), strict=True) if is_new]
        texts = [{"text": one.text[:_BEGINNING], "number": number} for number, one in self._kept(firsts)]
        self._writer.add_block(Block(ids, begins, texts=texts, places=places if self._keep_tokens else places[new]))

    def _ended(
        self, documents: list[Document], lengths: npt.NDArray[np.int64], ids: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], Mask]:
        """Ids with the tokens that begin documents, and an end after each text but the last; where documents begin in
        them; and which of these are new.

        Of a text that goes on behind a part that is in the other split, the rest counts as a document of its own.
        """
        numbers = np.array([self._number, *(document.number for document in documents)], np.int64)
        units = np.array([self._unit, *(document.unit for document in documents)], np.int64)
        another = np.diff(numbers) != 0
        new = another | (np.diff(units) > 1)
        ended = another & (numbers[:-1] >= 0)
        begins, prefix = np.cumsum(lengths) - lengths, self._prefix
        added = np.repeat(begins, ended + new * len(prefix))  # at one place, the end of a text comes first
        tokens = np.tile(np.append(self._end_of_text, prefix), len(documents)).reshape(len(documents), -1)
        chosen = np.column_stack([ended, *[new] * len(prefix)])
        ids = np.insert(ids, added, tokens[chosen])
        self._number, self._unit = int(numbers[-1]), int(units[-1])
        return ids, (begins + np.cumsum(ended) + (np.cumsum(new) - 1) * len(prefix))[new], new

    def _kept(self, documents: list[Document]) -> list[tuple[int, Document]]:
        """Those whose text is kept, with their numbers in the split: the first ones of the training data, all of the
        held-out data that `is_example` accepts for the documents so far."""
        first = self._writer.documents
        numbered = list(enumerate(documents, first))
        if not self._validation:
            return numbered[: max(0, _TRAIN_BEGINNINGS - first)]
        return [(number, document) for number, document in numbered if is_example(number, number + 1)]

    def commit(self) -> State:
        return {**self._writer.commit(), "number": self._number, "unit": self._unit}

    def finish(self) -> dict[str, int]:
        """End the last text and close; counts documents and tokens."""
        if self._number >= 0:
            self._writer.add_block(Block(np.array([self._end_of_text], np.int64), NO_NUMBERS))
        self._writer.finish()
        return {"documents": self._writer.documents, "tokens": self._writer.tokens}

    def abandon(self) -> None:
        self._writer.abandon()
