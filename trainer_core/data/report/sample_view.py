"""The first training samples as the model reads them: the text of each token, and whether it counts in the loss.

`loader.SequenceDataset` gives labels to the same tokens; a test compares the two. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.sequences import SequenceLayout
from trainer_core.data.token_files import Split, divide_spans
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.protocol import AnswerView, SampleView, Token

_MAX_SHOWN_TOKENS: Final = 1024  # of a sample
_MAX_PROMPT_TOKENS, _MAX_ANSWER_TOKENS = 96, 512  # of a preference; the latter includes the prompt
_CONTEXT_TOKENS: Final = 16  # before a token that its text may depend on
_MAX_TOKENS_PER_CHAR: Final = 4  # one for each byte
_REPLACEMENT_CHAR: Final = "\ufffd"  # decoded from an incomplete character


class SampleViewer:
    """Reads the first samples of a split."""

    def __init__(self, split: Split, codec: Codec, max_seq_len: int) -> None:
        self._split, self._codec, self._length = split, codec, max_seq_len + 1  # the last token is only predicted
        added = codec.tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special} | codec.stop_token_ids

    def text_samples(self, count: int, attend_across_documents: bool) -> list[SampleView]:
        """The first `count` whole windows of plain text."""
        stride, shown = self._length - 1, min(self._length, _MAX_SHOWN_TOKENS)
        samples = []
        for start in range(0, min(count * stride, self._split.tokens - stride), stride):
            documents = np.searchsorted(self._split.offsets, np.arange(start, start + shown), side="right") - 1
            in_loss = np.full(shown, attend_across_documents)
            in_loss[1:] |= documents[1:] == documents[:-1]
            in_loss[0] = False
            tokens = self._tokens(start, in_loss, documents - documents[0])
            samples.append(SampleView(tokens=tokens, length=self._length))
        return samples

    def conversation_samples(self, sequences: SequenceLayout, count: int) -> list[SampleView]:
        """The first `count` sequences of conversations."""
        return [self._conversation_sample(sequences.documents(index)) for index in range(count)]

    def _conversation_sample(self, documents: Sequence[int]) -> SampleView:
        tokens: list[Token] = []
        length = 0
        for place, document in enumerate(documents):
            start, end = self._split.offsets[document : document + 2].tolist()
            first, last = self._split.span_offsets[document : document + 2].tolist()
            used = min(end - start, self._length)
            length += used
            in_loss = np.zeros(min(used, _MAX_SHOWN_TOKENS - len(tokens)), np.bool_)
            for begin, stop in self._split.spans[first:last].tolist():
                in_loss[max(begin, 1) : stop] = True  # nothing predicts the very first token
            tokens += self._tokens(start, in_loss, np.full(len(in_loss), place))
        return SampleView(tokens=tokens, length=length)

    def preference_samples(self, sequences: SequenceLayout, count: int) -> list[SampleView]:
        """The first `count` preferences. Of a long prompt, the end is shown."""
        documents = chain.from_iterable(map(sequences.documents, range(sequences.samples)))
        return [self._preference_sample(document) for document in islice(documents, count)]

    def _preference_sample(self, document: int) -> SampleView:
        tokens: list[Token] = []
        answers: list[AnswerView] = []
        start, end = self._split.offsets[document : document + 2].tolist()
        first, last = self._split.span_offsets[document : document + 2].tolist()
        for side, begin, stop, spans in divide_spans(self._split.spans[first:last].tolist(), end - start):
            length = min(stop - begin, self._length)
            in_loss = np.zeros(length, np.bool_)
            for trained_from, trained_to in spans:
                in_loss[max(trained_from, 1) : trained_to] = True
            skipped = max(0, int(in_loss.argmax()) - _MAX_PROMPT_TOKENS)
            shown = in_loss[skipped : skipped + _MAX_ANSWER_TOKENS]
            tokens += self._tokens(start + begin + skipped, shown, np.full(len(shown), len(answers)))
            answers.append(AnswerView(chosen=side > 0, length=length, skipped=skipped))
        return SampleView(tokens=tokens, length=sum(answer.length for answer in answers), answers=answers)

    def _tokens(self, start: int, in_loss: npt.NDArray[np.bool_], documents: npt.NDArray[np.int64]) -> list[Token]:
        """The tokens from `start` on."""
        ids = self._split.read(start, start + len(in_loss)).tolist()
        rows = zip(decode_tokens(self._codec, ids), ids, in_loss.tolist(), documents.tolist(), strict=True)
        return [Token(text, token, counts, token in self._special, document) for text, token, counts, document in rows]


def decode_tokens(codec: Codec, ids: Sequence[int]) -> list[str]:
    """The text that each token adds. A character of several tokens belongs to the first of them."""
    texts = [""] * len(ids)
    start = first = 0  # of the tokens that are decoded together, and of those whose text is not complete
    known = 0  # characters before `first`
    for place in range(len(ids)):
        text = codec.decode(ids[start : place + 1], skip_special_tokens=False)
        is_complete = not text.endswith(_REPLACEMENT_CHAR) or place - first + 1 >= _MAX_TOKENS_PER_CHAR
        if not is_complete and place + 1 < len(ids):
            continue
        texts[first] = text[known:]
        known = len(text)
        if place + 1 - start >= _CONTEXT_TOKENS:  # not within a character: byte fallback decodes runs of bytes together
            start = first
            known = len(codec.decode(ids[start : place + 1], skip_special_tokens=False))
        first = place + 1
    return texts
