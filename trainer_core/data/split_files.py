"""Selection of held-out documents, and the token files of a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Document
from trainer_core.data.encode_batch import EncodedBatch
from trainer_core.data.order import keyed_hash
from trainer_core.data.token_files import EMPTY_INT64, TokenBlock, TokenFileWriter, WriterState
from trainer_core.data.tokenizing.tokenizer import Codec

_FRACTION_RESOLUTION: Final = 1_000_000  # resolution of validation_fraction
_KEPT_TEXT_CHARS: Final = 240  # of a plain text
_MAX_TRAIN_TEXTS: Final = 64
_MAX_EXAMPLES: Final = 4096  # held-out samples, approximately

Mask = npt.NDArray[np.bool_]


class HeldOutSelector:
    """Selects one unit in each block of `1 / fraction`, at a hashed position.

    Hashing each unit independently could leave a small data set without any held-out unit.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction_millionths = round(fraction * _FRACTION_RESOLUTION)

    def __contains__(self, unit: int) -> bool:
        return bool(self.mask(np.array([unit]))[0])

    def mask(self, units: npt.NDArray[Any]) -> Mask:
        """Boolean mask of the held-out units."""
        if not self._fraction_millionths or not len(units):
            return np.zeros(len(units), np.bool_)
        # int64: the default of numpy 1 on Windows, int32, would overflow.
        scaled = units.astype(np.int64) * self._fraction_millionths
        blocks, place = np.unique(scaled // _FRACTION_RESOLUTION, return_inverse=True)
        chosen = np.array([self._held_out_unit(block) for block in blocks.tolist()], np.int64)
        found: Mask = chosen[place] == units
        return found

    def _held_out_unit(self, block: int) -> int:
        start, end = (-(-number * _FRACTION_RESOLUTION // self._fraction_millionths) for number in (block, block + 1))
        return start + keyed_hash("validation", block) % (end - start)


def example_rank(number: int) -> int:
    """Random sort key of a held-out document. The first n in this order are a uniform sample."""
    return keyed_hash("examples", number)


def is_example(number: int, documents: int) -> bool:
    """Whether a document is in a uniform sample of about `_MAX_EXAMPLES` of `documents`.

    The samples are nested: a document that is not in the sample of n documents is in none of more documents.
    """
    return documents <= _MAX_EXAMPLES or example_rank(number) < 2**64 * _MAX_EXAMPLES // documents


class SplitWriter(TokenFileWriter):
    """Writes the documents of one split.

    Adds to plain text the prefix of the tokenizer (e.g. `<bos>`) and the end-of-text token.
    """

    def __init__(
        self, folder: Path, codec: Codec, state: WriterState | None, validation: bool, keep_tokens: bool
    ) -> None:
        super().__init__(folder, codec.vocab_size, state, keep_tokens)
        state = state or {}
        self._end_of_text, self._validation = codec.end_of_text, validation
        self._prefix = np.array(codec.prefix_ids, np.int64)
        # Of the last document. A text in several parts ends when the next one begins.
        self._last_number, self._last_unit = state.get("number", -1), state.get("unit", -1)

    def add(self, batch: list[Document], encoded: EncodedBatch, wanted: Mask) -> None:
        """Append the `wanted` documents of a batch."""
        documents = [batch[index] for index in np.flatnonzero(wanted).tolist()]
        ids, lengths = encoded.ids[np.repeat(wanted, encoded.lengths)], encoded.lengths[wanted]
        spans = counts = EMPTY_INT64
        if len(encoded.span_counts):
            spans, counts = encoded.spans[np.repeat(wanted, encoded.span_counts)], encoded.span_counts[wanted]
            begins, new = np.cumsum(lengths) - lengths, np.ones(len(documents), np.bool_)
        else:
            ids, begins, new = self._insert_document_boundaries(documents, lengths, ids)
        firsts = [document for document, is_new in zip(documents, new.tolist(), strict=True) if is_new]
        texts: list[dict[str, Any]] = [
            {"number": number, **({"text": one.text[:_KEPT_TEXT_CHARS]} if one.text else {"turns": one.turns})}
            for number, one in self._select_texts(firsts)
        ]
        locations = EMPTY_INT64 if self._keep_tokens else np.array([(one.file, one.row) for one in firsts], np.int64)
        self.add_block(TokenBlock(ids, begins, spans, counts, texts, locations, encoded.hashes[wanted]))

    def _insert_document_boundaries(
        self, documents: list[Document], lengths: npt.NDArray[np.int64], ids: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], Mask]:
        """Returns the ids with prefixes and end-of-text tokens, the document starts in them, and a mask of the parts
        that begin a document.

        The end of the last text is not added yet. Where a part of a text went to the other split, the rest is a new
        document.
        """
        numbers = np.array([self._last_number, *(document.number for document in documents)], np.int64)
        units = np.array([self._last_unit, *(document.split_unit for document in documents)], np.int64)
        another = np.diff(numbers) != 0
        new = another | (np.diff(units) > 1)
        ended = another & (numbers[:-1] >= 0)
        begins, prefix = np.cumsum(lengths) - lengths, self._prefix
        added = np.repeat(begins, ended + new * len(prefix))  # end of the previous text, then the prefix
        tokens = np.tile(np.append(self._end_of_text, prefix), len(documents)).reshape(len(documents), -1)
        chosen = np.column_stack([ended, *[new] * len(prefix)])
        ids = np.insert(ids, added, tokens[chosen])
        self._last_number, self._last_unit = int(numbers[-1]), int(units[-1])
        return ids, (begins + np.cumsum(ended) + (np.cumsum(new) - 1) * len(prefix))[new], new

    def _select_texts(self, documents: list[Document]) -> list[tuple[int, Document]]:
        """Documents whose text is kept, with their numbers in the split: the first training documents, and the held-out
        documents that `is_example` selects."""
        numbered = list(enumerate(documents, self.documents))
        if not self._validation:
            return numbered[: max(0, _MAX_TRAIN_TEXTS - self.documents)]
        return [(number, document) for number, document in numbered if is_example(number, number + 1)]

    def commit(self) -> WriterState:
        return {**super().commit(), "number": self._last_number, "unit": self._last_unit}

    def finish(self) -> dict[str, int]:
        """As `TokenFileWriter.finish`; ends the last text."""
        if self._last_number >= 0:
            self.add_block(TokenBlock(np.array([self._end_of_text], np.int64), EMPTY_INT64))
        return super().finish()
