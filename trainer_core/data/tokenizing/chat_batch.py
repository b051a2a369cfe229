"""Many conversations as ids at once: what each one holds is noted part by part, and arrays do the rest.

A conversation costs a few microseconds beside the encoding of its texts; ten million of them are common.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Turn, is_learned
from trainer_core.data.tokenizing.chat import ChatMl, Place, Segment, check, refused
from trainer_core.messages import TraindeckError

Ids = npt.NDArray[np.uint32]
Encode = Callable[[Sequence[tuple[str, Place]]], list[Ids]]

_NO_IDS: Final = np.zeros(0, np.uint32)


class Chats(NamedTuple):
    """Conversations as ids, one after the other, each up to the last one that is learned."""

    ids: Ids
    lengths: npt.NDArray[np.int64]  # ids of each conversation
    spans: npt.NDArray[np.int64]  # (n, 2): [start, stop) of what is learned, from the conversation's beginning
    span_counts: npt.NDArray[np.int64]  # spans of each conversation
    left_out: int = 0  # turns that the template cannot write, see `chat.without_calls`


class Batch:
    """Conversations on their way to ids."""

    def __init__(self) -> None:
        self._parts: list[Ids | None] = []  # None: the next one of the texts
        self._learned: list[bool] = []
        self._texts: list[tuple[str, Place]] = []
        self._ends: list[int] = []  # of conversations, in parts

    def add_mark(self, ids: Ids, learned: bool = False) -> None:
        self._parts.append(ids)
        self._learned.append(learned)

    def add_text(self, text: str, place: Place, learned: bool = False) -> None:
        self._texts.append((text, place))
        self._parts.append(None)
        self._learned.append(learned)

    def end(self) -> None:
        """The conversation is complete."""
        self._ends.append(len(self._parts))

    def encoded(self, encode: Encode) -> Chats:
        """Raises what `encode` raises."""
        ids = iter(encode(self._texts))
        parts = [next(ids) if part is None else part for part in self._parts]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        ends = np.array(self._ends, np.int64)
        stops = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])  # stops[n]: where part n begins
        bounds = np.concatenate([np.zeros(1, np.int64), stops[ends]])
        spans, counts = _spans(np.array(self._learned, np.bool_), sizes, stops, ends)
        spans -= np.repeat(bounds[:-1], counts)[:, None]
        return Chats(np.concatenate(parts) if parts else _NO_IDS, np.diff(bounds), spans, counts)


def _spans(
    learned: npt.NDArray[np.bool_], sizes: npt.NDArray[Any], stops: npt.NDArray[Any], ends: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[start, stop) of learned parts side by side, of one conversation each; and how many each has."""
    kept = np.flatnonzero(sizes)
    learned, owner = learned[kept], np.searchsorted(ends, kept, side="right")
    joined = learned[1:] & learned[:-1] & (owner[1:] == owner[:-1])  # with the part before
    first, last = learned.copy(), learned.copy()
    first[1:] &= ~joined
    last[:-1] &= ~joined
    spans = np.stack([stops[kept[first]], stops[kept[last] + 1]], axis=1).astype(np.int64)
    return spans, np.bincount(owner[first], minlength=len(ends)).astype(np.int64)


class SegmentWriter:
    """Writes the segments that any template makes."""

    def __init__(self) -> None:
        self._marks: dict[int, Ids] = {}

    def write(self, batch: Batch, segments: Iterable[Segment]) -> None:
        for text, mark, learned, place in segments:
            if mark < 0:
                batch.add_text(text, place, learned)
                continue
            ids = self._marks.get(mark)
            if ids is None:
                ids = self._marks[mark] = np.array((mark,), np.uint32)
            batch.add_mark(ids, learned)


class ChatMlWriter:
    """Writes conversations in ChatML: what `ChatMl.segments` makes, up to the last answer."""

    def __init__(self, template: ChatMl, encode: Encode) -> None:
        start, self._end = (np.array((mark,), np.uint32) for mark in (template.start, template.end))
        answer, line = encode([("assistant\n", "mark"), ("\n", "mark")])
        said = np.concatenate([self._end, line])  # what ends a turn that another one follows
        turn = {False: start, True: np.concatenate([start, answer])}  # by whether an answer follows
        prefix = np.array(template.prefix, np.uint32)
        self._first = {answers: np.concatenate([prefix, ids]) for answers, ids in turn.items()}
        self._next = {answers: np.concatenate([said, ids]) for answers, ids in turn.items()}
        self._after_answer = {answers: np.concatenate([line, ids]) for answers, ids in turn.items()}

    def write(self, batch: Batch, turns: Sequence[Turn]) -> None:
        """Raises `data.chat_refused`."""
        check(turns)
        count = len(turns)
        while count and not (turns[count - 1][0] == "assistant" and is_learned(turns[count - 1])):
            count -= 1
        if not count:
            raise no_answers()
        before = self._first
        for turn in turns[:count]:
            role, content = turn[0], turn[1]
            if role != "assistant":
                batch.add_mark(before[False])
                batch.add_text(f"{role}\n{content}", "mark")
                before = self._next
                continue
            learned = len(turn) < 3 or is_learned(turn)
            batch.add_mark(before[True])
            if content:
                batch.add_text(content, "text", learned)
            batch.add_mark(self._end, learned)
            before = self._after_answer


def up_to_the_last_learned(segments: list[Segment]) -> list[Segment]:
    """Without what follows the last answer: nothing would be learned from it. Raises `data.chat_refused`."""
    while segments and not segments[-1].learned:
        segments.pop()
    if not segments:
        raise no_answers()
    return segments


def no_answers() -> TraindeckError:
    return refused("the model's chat template writes none of its answers")
