"""The first training samples as the model gets them: each token with its text, and whether the loss counts it.

What counts is what `batches.Samples` gives labels to; a test holds the two together. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.sequences import Sequences
from trainer_core.data.store import Split
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.protocol import SampleView, Token

SHOWN: Final = 1024  # tokens of a sample at most
_CONTEXT: Final = 16  # tokens before one that its text may depend on
_LONGEST_CHARACTER: Final = 4  # bytes, and so tokens, of a character
_CUT: Final = "\ufffd"  # how a decoder shows a character of which bytes are missing

Ids = npt.NDArray[np.int64]


class Viewer:
    """Makes the first samples of a split visible."""

    def __init__(self, split: Split, codec: Codec, max_seq_len: int) -> None:
        self._split, self._codec, self._length = split, codec, max_seq_len
        added = codec.tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special} | codec.ends

    def windows(self, count: int, attend_across_documents: bool) -> list[SampleView]:
        """The first whole windows of plain text; the last token of each is only predicted."""
        found = []
        for start in range(0, min(count, (self._split.tokens - 1) // self._length) * self._length, self._length):
            shown = min(self._length + 1, SHOWN)
            offsets = self._split.offsets
            documents = np.searchsorted(offsets, np.arange(start, start + shown), side="right") - 1
            learned = np.ones(shown, np.bool_)
            learned[0] = False
            if not attend_across_documents:
                learned[1:] = documents[1:] == documents[:-1]
            ids = self._split.read(start, start + shown)
            tokens = self._tokens(ids, learned, documents - documents[0])
            found.append(SampleView(tokens=tokens, length=self._length + 1))
        return found

    def conversations(self, sequences: Sequences, count: int) -> list[SampleView]:
        """The first `count` sequences of conversations."""
        return [self._sequence(list(map(int, sequences.documents(index)))) for index in range(count)]

    def _sequence(self, documents: Sequence[int]) -> SampleView:
        tokens: list[Token] = []
        length = 0
        for place, document in enumerate(documents):
            start, end = self._split.offsets[document : document + 2].tolist()
            taken = min(end - start, self._length + 1)
            length += taken
            shown = min(taken, SHOWN - len(tokens))
            if shown > 0:
                ids = self._split.read(start, start + shown)
                tokens += self._tokens(ids, self._learned(document, shown), np.full(shown, place))
        return SampleView(tokens=tokens, length=length)

    def _learned(self, document: int, shown: int) -> npt.NDArray[np.bool_]:
        learned = np.zeros(shown, np.bool_)
        first, last = self._split.span_offsets[document : document + 2].tolist()
        for begin, stop in self._split.spans[first:last].tolist():
            learned[max(begin, 1) : stop] = True  # nothing stands before a first token that could predict it
        return learned

    def _tokens(self, ids: Ids, learned: npt.NDArray[np.bool_], documents: npt.NDArray[np.int64]) -> list[Token]:
        rows = zip(
            token_texts(self._codec, ids.tolist()), ids.tolist(), learned.tolist(), documents.tolist(), strict=True
        )
        return [
            Token(text, number, counts, number in self._special, document) for text, number, counts, document in rows
        ]


def token_texts(codec: Codec, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text. A character of several tokens is all with the first of them."""
    texts = [""] * len(ids)
    start = first = 0  # of the tokens that are decoded together; of those whose text is not complete
    known = 0  # characters of the text before `first`
    for place in range(len(ids)):
        text = codec.decode(ids[start : place + 1], skip_special_tokens=False)
        complete = not text.endswith(_CUT) or place - first + 1 >= _LONGEST_CHARACTER
        if not complete and place + 1 < len(ids):
            continue
        texts[first] = text[known:]
        first, known = place + 1, len(text)
        if place + 1 - start >= _CONTEXT:
            start = place
            known = len(codec.decode(ids[start : place + 1], skip_special_tokens=False))
    return texts
