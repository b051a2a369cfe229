"""Encodes many conversations at once.

Apart from encoding its texts, a conversation takes a few microseconds; data sets of ten million are common.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Turn, is_trained_on, trim_after_last_answer
from trainer_core.data.tokenizing.chat_template import ChatMl, PrecededBy, Segment, chat_refused_error, validate_turns
from trainer_core.messages import TraindeckError

Ids = npt.NDArray[np.uint32]
EncodeFunction = Callable[[Sequence[tuple[str, PrecededBy]]], list[Ids]]

_NO_IDS: Final = np.zeros(0, np.uint32)


@cache
def _one_id(token_id: int) -> Ids:
    return np.array((token_id,), np.uint32)


class EncodedChats(NamedTuple):
    """Conversations as token ids, concatenated, each up to its last token in the loss."""

    ids: Ids
    lengths: npt.NDArray[np.int64]  # tokens per conversation
    spans: npt.NDArray[np.int64]  # (n, 2): [start, stop) of tokens in the loss, relative to their conversation
    span_counts: npt.NDArray[np.int64]  # spans per conversation
    dropped_turns: int = 0  # turns that the template cannot write, see `chat_template.drop_unsupported_calls`


class ChatBatchBuilder:
    """Collects the parts of conversations and encodes all texts in one call."""

    def __init__(self) -> None:
        self._parts: list[Ids | None] = []  # None: the next text
        self._in_loss: list[bool] = []
        self._texts: list[tuple[str, PrecededBy]] = []
        self._conversation_ends: list[int] = []  # indices into _parts

    def add_token_ids(self, ids: Ids, in_loss: bool = False) -> None:
        self._parts.append(ids)
        self._in_loss.append(in_loss)

    def add_text(self, text: str, preceded_by: PrecededBy, in_loss: bool = False) -> None:
        self._texts.append((text, preceded_by))
        self._parts.append(None)
        self._in_loss.append(in_loss)

    def add_segments(self, segments: Iterable[Segment]) -> None:
        for text, token_id, in_loss, preceded_by in segments:
            if token_id < 0:
                self.add_text(text, preceded_by, in_loss)
            else:
                self.add_token_ids(_one_id(token_id), in_loss)

    def end_conversation(self) -> None:
        """Completes the current conversation."""
        self._conversation_ends.append(len(self._parts))

    def encode(self, encode: EncodeFunction) -> EncodedChats:
        """Raises what `encode` raises."""
        ids = iter(encode(self._texts))
        parts = [next(ids) if part is None else part for part in self._parts]
        ends = np.array(self._conversation_ends, np.int64)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])  # of parts
        bounds = np.concatenate([[0], offsets[ends]])  # of conversations
        spans, counts = _loss_spans(np.array(self._in_loss, np.bool_), offsets, ends)
        spans -= np.repeat(bounds[:-1], counts)[:, None]
        return EncodedChats(np.concatenate(parts or [_NO_IDS]), np.diff(bounds), spans, counts)


def _loss_spans(
    in_loss: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[start, stop) of adjacent parts in the loss, joined within a conversation; and their number per conversation."""
    kept = np.flatnonzero(np.diff(offsets))
    in_loss, owner = in_loss[kept], np.searchsorted(ends, kept, side="right")
    joined = in_loss[1:] & in_loss[:-1] & (owner[1:] == owner[:-1])  # with the part before
    first, last = in_loss.copy(), in_loss.copy()
    first[1:] &= ~joined
    last[:-1] &= ~joined
    spans = np.stack([offsets[kept[first]], offsets[kept[last] + 1]], axis=1)
    return spans, np.bincount(owner[first], minlength=len(ends))


class ChatMlWriter:
    """Writes conversations in ChatML: the segments of `ChatMl.render`, up to the last answer."""

    def __init__(self, template: ChatMl, encode: EncodeFunction) -> None:
        start, self._end = _one_id(template.start_of_turn), _one_id(template.end_of_turn)
        assistant, line = encode([("assistant\n", "mark"), ("\n", "mark")])
        headers = (start, np.concatenate([start, assistant]))  # of others, and of answers
        self._first_turn, self._next_turn, self._turn_after_answer = (
            [np.concatenate([*before, header]) for header in headers]
            for before in ([np.array(template.prefix_ids, np.uint32)], [self._end, line], [line])
        )

    def write(self, batch: ChatBatchBuilder, turns: Sequence[Turn]) -> None:
        """Raises `data.chat_refused`."""
        validate_turns(turns)
        turns = trim_after_last_answer(turns)
        if not turns:
            raise no_answers_error()
        before = self._first_turn
        for turn in turns:
            role, content = turn[0], turn[1]
            is_answer = role == "assistant"
            batch.add_token_ids(before[is_answer])
            if not is_answer:
                batch.add_text(f"{role}\n{content}", "mark")
                before = self._next_turn
                continue
            in_loss = is_trained_on(turn)
            if content:
                batch.add_text(content, "text", in_loss)
            batch.add_token_ids(self._end, in_loss)
            before = self._turn_after_answer


def trim_after_last_in_loss(segments: list[Segment]) -> list[Segment]:
    """Removes what follows the last segment in the loss. Raises `data.chat_refused` if there is none."""
    while segments and not segments[-1].in_loss:
        segments.pop()
    if not segments:
        raise no_answers_error()
    return segments


def no_answers_error() -> TraindeckError:
    return chat_refused_error("the model's chat template writes none of its answers")
