"""Distinct words as tokens in one array, and the pairs of neighbours in it that were seen often.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data.tokenizing.bpe_split import Ints
from trainer_core.data.tokenizing.bpe_words import Words, run_heads, spread

Tokens = npt.NDArray[np.signedinteger[Any]]
Places = npt.NDArray[np.int32]

NOTHING: Final = -1  # between two words, and inside of a token
BITS: Final = 20  # of a token's number in the key of a pair: left << BITS | right
CHUNK: Final = 1 << 17  # places that are worked on at once: in the processor's cache, and a few milliseconds
_SKETCH_BITS: Final = 21
_PLACES: Final = 8 * 1024 * 1024  # places of pairs that are collected at once
_WAITING: Final = 1 << 17  # pairs that wait to be added up
_DISTINCT: Final = 1 << 20  # pairs that are added up in one pass


class Corpus:
    """All distinct words as tokens in one array; each place is a byte of a word.

    A token stands at its first place as its number n and at its last one as -2 - n (a token of one byte only
    as n); the places between hold -1, as does the one between two words. So both neighbours of a token are
    found without links, and a merge writes four places.
    """

    def __init__(self, parts: Iterable[Words], places: int, alphabet: list[int], vocab_size: int) -> None:
        """`places`: bytes and words of all parts; `alphabet`: the byte of each of the first 256 tokens."""
        kind = np.int16 if vocab_size < 2**15 else np.int32
        ids = np.empty(256, kind)
        ids[alphabet] = np.arange(256)
        self.tokens: Tokens = np.full(places + 1, NOTHING, kind)
        self.lengths = np.ones(vocab_size, np.int32)  # bytes of each token
        # Words seen equally often stand together: the weights begin at the starts.
        starts, weights = [np.zeros(1, np.int64)], [np.ones(1, np.int64)]
        end = 1
        for words in parts:
            if not len(words.hashes):
                continue
            order = np.argsort(-words.counts)
            begins, sizes = (np.cumsum(words.lengths) - words.lengths)[order], words.lengths[order] + 1
            ends = end + np.cumsum(sizes)
            data = np.append(words.data, np.uint8(0))  # so that something is behind the last word
            self.tokens[end : ends[-1]] = ids[data[spread(begins, sizes)]]
            self.tokens[ends - 1] = NOTHING
            counts = words.counts[order]
            heads = run_heads(counts)
            starts.append((ends - sizes)[heads])
            weights.append(counts[heads])
            end = int(ends[-1])
        self._starts, self._weights = np.concatenate(starts), np.concatenate(weights)

    def weights(self, places: Ints) -> Ints:
        """How often the word at each of these places (ascending) was seen."""
        if len(places) > len(self._starts):  # the same, faster
            cuts = np.searchsorted(places, self._starts)
            cuts[0] = 0
            return np.repeat(self._weights, np.diff(cuts, append=len(places)))
        return self._weights[np.searchsorted(self._starts, places, side="right") - 1]

    def before(self, places: Ints) -> Tokens:
        """The token that ends right before each place, or -1."""
        found = self.tokens.take(places - 1)
        return np.where(found < NOTHING, -2 - found, found)

    def pairs(self) -> Iterator[tuple[Ints, Ints]]:
        """The places of all pairs of neighbours and the pairs' keys, a chunk at a time."""
        for start in range(0, len(self.tokens), CHUNK):
            places = np.flatnonzero(self.tokens[start : start + CHUNK] >= 0) + start
            left = self.tokens.take(places)
            right = self.tokens.take(places + self.lengths.take(left))
            pairs = right >= 0
            yield places[pairs], left[pairs].astype(np.int64) << BITS | right[pairs]


def slots(keys: Ints, bits: int) -> Ints:
    """A hash of each pair, of so many bits."""
    return ((keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)).view(np.int64)


class Sketch:
    """How often pairs were seen, added up by a hash of the pair: never less than what is true."""

    def __init__(self, corpus: Corpus, poll: Callable[[], None]) -> None:
        self._poll = poll
        self._bits = min(_SKETCH_BITS, max(8, len(corpus.tokens).bit_length()))
        self._sums = np.zeros(1 << self._bits, np.int64)
        self._sizes = np.zeros(1 << self._bits, np.int32)  # places
        for places, keys in corpus.pairs():
            found = slots(keys, self._bits)
            np.add.at(self._sums, found, corpus.weights(places))
            np.add.at(self._sizes, found, np.int32(1))
            poll()

    def of(self, keys: Ints) -> Ints:
        return self._sums.take(slots(keys, self._bits))

    def floor(self, least: int, limit: int) -> int:
        """How often a pair must be seen so that about `limit` ones are, or fewer where these have many places."""
        limit = min(limit, len(self._sums))
        highest = self._sums[:0]
        for start in range(0, len(self._sums), CHUNK):
            highest = np.concatenate([highest, self._sums[start : start + CHUNK]])
            if len(highest) > limit:
                highest = np.partition(highest, -limit)[-limit:]
            self._poll()
        bound = max(least, int(highest.min()))
        often = np.flatnonzero(self._sums >= bound)
        if not len(often):
            return least
        self._poll()
        often = often[np.argsort(-self._sums[often])]
        fitting = min(int(np.searchsorted(np.cumsum(self._sizes[often]), _PLACES, side="right")), limit)
        if fitting == len(often):
            return bound
        return int(min(self._sums[often[fitting]] + 1, self._sums[often[0]]))


class Pairs(NamedTuple):
    """Distinct pairs in ascending order of their keys, and how often each was seen.

    Pair i stands at `places[bounds[i] : bounds[i + 1]]`, which ascend.
    """

    keys: Ints
    counts: Ints
    bounds: Ints
    places: Places


def frequent(corpus: Corpus, sketch: Sketch, floor: int, poll: Callable[[], None]) -> list[Pairs]:
    """All pairs that were seen at least `floor` times.

    In several passes where the sketch cannot tell these from too many others.
    """
    passes = 1
    found: list[Pairs] = []
    while len(found) < passes:
        pairs = _Pass(corpus, sketch, floor, len(found), passes, poll).run()
        if pairs is None:
            passes *= 4
            found.clear()
        else:
            found.append(pairs)
    return found


class _Totals(NamedTuple):
    """Distinct pairs in ascending order, how often each was seen, and at how many places."""

    keys: Ints
    counts: Ints
    sizes: Ints


_NO_TOTALS: Final = _Totals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def _united(parts: list[_Totals]) -> _Totals:
    keys, counts, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(keys):
        return _NO_TOTALS
    order = np.argsort(keys, kind="stable")  # this one merges what is sorted already
    keys = keys[order]
    heads = run_heads(keys)
    return _Totals(keys[heads], np.add.reduceat(counts[order], heads), np.add.reduceat(sizes[order], heads))


class _Pass:
    """Finds the frequent ones among the pairs whose keys are congruent to `number` modulo `passes`."""

    def __init__(
        self, corpus: Corpus, sketch: Sketch, floor: int, number: int, passes: int, poll: Callable[[], None]
    ) -> None:
        self._corpus, self._sketch, self._floor, self._poll = corpus, sketch, floor, poll
        self._number, self._passes = number, passes

    def run(self) -> Pairs | None:
        """None if there are too many pairs to add up."""
        chunks: list[tuple[_Totals, Places]] = []
        waiting: list[_Totals] = []
        totals, size = _NO_TOTALS, 0
        for chunk in self._chunks():
            chunks.append(chunk)
            waiting.append(chunk[0])
            size += len(chunk[0].keys)
            if size > _WAITING:
                totals, waiting, size = _united([totals, *waiting]), [], 0
                self._poll()
            if len(totals.keys) > _DISTINCT:
                return None
        totals = _united([totals, *waiting])
        self._poll()
        often = totals.counts >= self._floor
        keys, bounds = totals.keys[often], np.append(0, np.cumsum(totals.sizes[often]))
        return Pairs(keys, totals.counts[often], bounds, self._together(keys, bounds, chunks))

    def _chunks(self) -> Iterator[tuple[_Totals, Places]]:
        """The pairs in a chunk of the corpus that may be frequent, and their places in the order of the pairs."""
        for places, keys in self._corpus.pairs():
            self._poll()
            chosen = self._sketch.of(keys) >= self._floor
            if self._passes > 1:
                chosen &= keys % self._passes == self._number
            places, keys = places[chosen], keys[chosen]
            if not len(keys):
                continue
            packed = keys * CHUNK + np.arange(len(keys))  # faster to sort than argsort is
            packed.sort()
            keys, order = packed // CHUNK, packed % CHUNK
            heads = run_heads(keys)
            counts = np.add.reduceat(self._corpus.weights(places)[order], heads)
            sizes = np.diff(heads, append=len(keys))
            yield _Totals(keys[heads], counts, sizes), places[order].astype(np.int32)

    def _together(self, keys: Ints, bounds: Ints, chunks: list[tuple[_Totals, Places]]) -> Places:
        """The places of these pairs, out of the chunks, which are used up."""
        filled = bounds[:-1].copy()
        together = np.empty(bounds[-1], np.int32)
        chunks.reverse()
        while chunks and len(keys):
            part, places = chunks.pop()
            rows = np.minimum(np.searchsorted(keys, part.keys), len(keys) - 1)
            chosen = keys[rows] == part.keys
            rows, lengths = rows[chosen], part.sizes[chosen]
            starts = (np.cumsum(part.sizes) - part.sizes)[chosen]
            together[spread(filled[rows], lengths)] = places[spread(starts, lengths)]
            filled[rows] += lengths
            self._poll()
        return together
