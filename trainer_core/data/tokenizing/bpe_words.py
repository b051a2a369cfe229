"""The distinct words of texts and how often each was seen, as byte-level BPE wants them.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data.tokenizing.bpe_split import BREAK, Bytes, Flags, Ints, Splitter

Hashes = npt.NDArray[np.uint64]

_SHARDS: Final = 32  # parts of the table; a power of two
_PENDING: Final = 4 * 1024 * 1024  # bytes of words that wait at least, before they are put into the table
_WORD_COST: Final = 4  # bytes of budget that a word takes besides its own


class Words(NamedTuple):
    """Distinct words in ascending order of `hashes`: `counts` int64 and `lengths` int32 (n,); `data` holds
    the bytes of all of them, one behind the other."""

    hashes: Hashes
    counts: Ints
    lengths: npt.NDArray[np.int32]
    data: Bytes

    def between(self, start: int, stop: int) -> Words:
        """The words number `start` to `stop`."""
        offset = int(self.lengths[:start].sum())
        end = offset + int(self.lengths[start:stop].sum())
        return Words(self.hashes[start:stop], self.counts[start:stop], self.lengths[start:stop], self.data[offset:end])


def _mixed(values: Hashes) -> Hashes:
    """A bijection whose result has every bit depend on every bit (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


class _Hasher:
    """64-bit hashes of many slices of one array: sum of f(byte) * base**place, from prefix sums.

    That two of a million different words get the same one, and are counted as one, has a chance of 1 : 10**7.
    """

    def __init__(self) -> None:
        self._values = _mixed(np.arange(1, 257, dtype=np.uint64) * np.uint64(_BASE))
        self._powers = self._inverses = np.ones(1, np.uint64)

    def hashes(self, data: Bytes, starts: Ints, stops: Ints) -> Hashes:
        if len(self._powers) <= len(data):
            size = len(data) + len(data) // 4
            self._powers = self._geometric(_BASE, size)
            self._inverses = self._geometric(pow(_BASE, -1, 2**64), size)
        sums = np.zeros(len(data) + 1, np.uint64)
        np.cumsum(self._values[data] * self._powers[: len(data)], out=sums[1:])
        return _mixed((sums[stops] - sums[starts]) * self._inverses[starts])

    @staticmethod
    def _geometric(base: int, size: int) -> Hashes:
        factors = np.full(size, base, np.uint64)
        factors[0] = 1
        return np.cumprod(factors)


def spread(starts: Ints, lengths: npt.NDArray[Any]) -> Ints:
    """The numbers from `starts[i]` on, `lengths[i]` of them, for each i, one behind the other."""
    shifts = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(shifts, lengths) + np.arange(int(lengths.sum()))


_NONE: Final = Words(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8))


class WordTable:
    """Counts words within `budget` bytes, whatever the text.

    When the distinct words need more, rare ones are thinned: a word that was seen `count` times stays with
    the probability `count / floor` and then counts as `floor`. `floor` doubles until the rest fits. Words seen
    more often keep their exact counts, and the expected count of every word and pair stays what it was,
    wherever in the data it occurs. Hashes of the words decide what stays: the same texts give the same table.
    """

    def __init__(self, splitter: Splitter, budget: int, poll: Callable[[], None]) -> None:
        self._splitter, self._budget, self._poll = splitter, budget, poll
        self._hasher = _Hasher()
        self._shards = [_NONE] * _SHARDS
        self._pending: list[Words] = []
        self._size = self._pending_size = 0
        self._draws = 0
        self.floor = 1

    def add(self, text: str) -> None:
        """Count the words of a block of text, which begins and ends with `BREAK`."""
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        if len(data) == len(text) + 2 * text.count(BREAK):  # all the rest is ASCII
            starts, stops = self._splitter.words(data)
        else:
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            places = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))
            starts, stops = (places[found] for found in self._splitter.words(codes))
        self._poll()
        pairs = stops - starts > 1  # a word of one byte has no pair to merge
        if pairs.any():
            self._add(data, starts[pairs], stops[pairs])
        self._poll()

    def _add(self, data: Bytes, starts: Ints, stops: Ints) -> None:
        hashes = self._hasher.hashes(data, starts, stops)
        order = np.argsort(hashes)
        hashes = hashes[order]
        heads = run_heads(hashes)
        chosen = order[heads]
        lengths = (stops[chosen] - starts[chosen]).astype(np.int32)
        counts = np.diff(np.append(heads, len(hashes)))
        self._pending.append(Words(hashes[heads], counts, lengths, data[spread(starts[chosen], lengths)]))
        self._pending_size += _size(self._pending[-1])
        if self._pending_size > max(_PENDING, self._size // 2):
            self.settle()

    def settle(self) -> None:
        """Put the waiting words into the table."""
        limits = np.arange(1, _SHARDS, dtype=np.uint64) << np.uint64(64 - (_SHARDS - 1).bit_length())
        cuts = [np.append(np.append(0, np.searchsorted(one.hashes, limits)), len(one.hashes)) for one in self._pending]
        self._poll()
        self._draws += 1
        for number, shard in enumerate(self._shards):
            parts = [one.between(cut[number], cut[number + 1]) for one, cut in zip(self._pending, cuts, strict=True)]
            self._shards[number] = self._united(shard, parts)
            self._poll()
        self._pending.clear()
        self._pending_size = 0
        self._size = sum(map(_size, self._shards))
        while self._size > self._budget:
            self.floor *= 2
            self._draws += 1
            for number, shard in enumerate(self._shards):
                self._shards[number] = self._thinned(shard, np.zeros(len(shard.hashes), np.bool_))
                self._poll()
            self._size = sum(map(_size, self._shards))

    def _united(self, shard: Words, parts: list[Words]) -> Words:
        hashes, counts, lengths, data = (np.concatenate(columns) for columns in zip(shard, *parts, strict=True))
        if not len(hashes):
            return shard
        order = np.argsort(hashes)
        heads = run_heads(hashes[order])
        chosen = order[heads]
        starts = np.cumsum(lengths) - lengths
        known = np.logical_or.reduceat(order < len(shard.hashes), heads)
        counts = np.add.reduceat(counts[order], heads)
        words = Words(hashes[chosen], counts, lengths[chosen], data[spread(starts[chosen], lengths[chosen])])
        return self._thinned(words, known) if self.floor > 1 else words

    def _thinned(self, words: Words, known: Flags) -> Words:
        """The known words and some of the others."""
        draws = _mixed(words.hashes + np.uint64(self._draws * _BASE % 2**64)).astype(np.float64) / 2.0**64
        stays = known | (draws * self.floor < words.counts)
        counts = np.where(known, words.counts, np.maximum(words.counts, self.floor))
        data = words.data[np.repeat(stays, words.lengths)]
        return Words(words.hashes[stays], counts[stays], words.lengths[stays], data)

    @property
    def places(self) -> int:
        """Bytes and words, together."""
        return sum(len(shard.data) + len(shard.hashes) for shard in self._shards)

    def take(self) -> Iterator[Words]:
        """All words that were settled, in parts; the table is empty afterwards."""
        self._hasher = _Hasher()
        for number, shard in enumerate(self._shards):
            self._shards[number] = _NONE
            self._poll()
            yield shard


def run_heads(values: npt.NDArray[Any]) -> Ints:
    """Where runs of equal values begin."""
    differs = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs.nonzero()[0]


def _size(words: Words) -> int:
    return len(words.data) + _WORD_COST * len(words.hashes)
