"""Which pairs of tokens byte-level BPE merges, from counted words.

No torch, no Qt.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

import numpy as np

from trainer_core.data.tokenizing.bpe_pairs import (
    BITS,
    CHUNK,
    NOTHING,
    Corpus,
    Pairs,
    Places,
    Sketch,
    Tokens,
    frequent,
    slots,
)
from trainer_core.data.tokenizing.bpe_split import Flags, Ints
from trainer_core.data.tokenizing.bpe_words import run_heads

_RIGHT: Final = (1 << BITS) - 1
_KEY_BITS: Final = 2 * BITS
_KEY: Final = (1 << _KEY_BITS) - 1
_TRACKED: Final = 64 * 1024  # pairs, at least
_FILTER_BITS: Final = 20
_MANY: Final = 2048  # places; from here on bincount is faster than a loop


class Merger:
    """Merges the most frequent pair, again and again; of equally frequent ones that of the smallest tokens.

    Only pairs that were seen at least `floor` times are tracked: counted, with the places where they were.
    `floor` rises when they become too many. As a pair is never seen more often than when its younger token
    was made, the others can wait until no pair is tracked any more; then all tokens are looked through for
    the next ones. So the memory for pairs stays small, and the result is the same.

    No two merges make the same token: places that hold the same bytes, with nothing yet merged across their
    ends, have seen the same merges.
    """

    def __init__(
        self, corpus: Corpus, alphabet: list[int], vocab_size: int, least: int, poll: Callable[[], None]
    ) -> None:
        """`alphabet`: the byte of each of the first 256 tokens; a pair must be seen `least` times to be merged."""
        self._corpus, self._vocab_size, self._least, self._poll = corpus, vocab_size, least, poll
        self.spellings = [bytes([value]) for value in alphabet]
        self.merges: list[tuple[int, int]] = []
        self._floor = least
        self._limit = _TRACKED
        self._counts: dict[int, int] = {}
        self._places: dict[int, Places] = {}  # ascending; a pair may have left some of them
        self._queue: list[int] = []  # -count and key in one number; the count may have become less
        self._filter = np.zeros(1 << _FILTER_BITS, np.bool_)  # by hash; where false, the pair is not tracked

    def run(self) -> None:
        while len(self.spellings) < self._vocab_size and self._track():
            while self._queue and len(self.spellings) < self._vocab_size:
                self._take(self._queue[0])
                self._poll()
                if len(self._counts) > self._limit:
                    self._raise_floor()

    def _take(self, first: int) -> None:
        """Merge the first pair in the queue, or put it where it belongs."""
        key, count = first & _KEY, -(first >> _KEY_BITS)
        now = self._counts.get(key)
        if now is None:
            heapq.heappop(self._queue)
        elif now < count:
            heapq.heapreplace(self._queue, _item(key, now))
        else:
            heapq.heappop(self._queue)
            self._merge(key)

    # --- tracking ---

    def _track(self) -> bool:
        """Look for the most frequent pairs; whether there are any."""
        self._counts, self._places, self._queue = {}, {}, []
        self._filter[:] = False
        self._limit = max(_TRACKED, self._vocab_size - len(self.spellings))
        sketch = Sketch(self._corpus, self._poll)
        self._floor = sketch.floor(self._least, self._limit // 2)
        self._poll()
        while True:
            for pairs in frequent(self._corpus, sketch, self._floor, self._poll):
                self._add(pairs)
            if self._counts or self._floor == self._least:
                break
            self._floor = max(self._least, self._floor // 2)  # the sketch was too high
        self._fill_queue()
        return bool(self._counts)

    def _add(self, pairs: Pairs) -> None:
        keys, bounds = pairs.keys.tolist(), pairs.bounds.tolist()
        self._counts.update(zip(keys, pairs.counts.tolist(), strict=True))
        self._poll()
        self._places.update((key, pairs.places[bounds[n] : bounds[n + 1]]) for n, key in enumerate(keys))
        self._poll()
        self._filter[slots(pairs.keys, _FILTER_BITS)] = True

    def _raise_floor(self) -> None:
        """Forget the rarer half of the pairs."""
        counts = np.fromiter(self._counts.values(), np.int64, len(self._counts))
        self._floor = min(int(np.median(counts)) + 1, int(counts.max()))
        self._poll()
        self._counts = {key: count for key, count in self._counts.items() if count >= self._floor}
        self._poll()
        self._places = {key: self._places[key] for key in self._counts}
        self._poll()
        self._limit = max(self._limit, 2 * len(self._counts))
        self._fill_queue()

    def _fill_queue(self) -> None:
        self._queue = [_item(key, count) for key, count in self._counts.items()]
        self._poll()
        heapq.heapify(self._queue)
        self._poll()

    # --- merging ---

    def _merge(self, key: int) -> None:
        left, right = key >> BITS, key & _RIGHT
        token = len(self.spellings)
        self.spellings.append(self.spellings[left] + self.spellings[right])
        self._corpus.lengths[token] = len(self.spellings[token])
        self.merges.append((left, right))
        del self._counts[key]
        places = self._places.pop(key)
        merged = []
        for start in range(0, len(places), CHUNK):
            merged.append(self._replace(places[start : start + CHUNK].astype(np.int64), left, right, token))
            self._poll()
        self._gain(np.concatenate(merged) if len(merged) > 1 else merged[0], token)

    def _replace(self, places: Ints, left: int, right: int, token: int) -> Ints:
        """Put a token in the place of a pair wherever it still is; the places where it was."""
        tokens = self._corpus.tokens
        places = places[tokens.take(places) == left]
        seconds = places + len(self.spellings[left])
        still = tokens.take(seconds) == right
        places, seconds = places[still], seconds[still]
        if left == right:
            chosen = _alternate(places, seconds)
            places, seconds = places[chosen], seconds[chosen]
        ends = seconds + len(self.spellings[right])
        before, after = self._corpus.before(places), tokens.take(ends)
        after[:-1][ends[:-1] == places[1:]] = NOTHING  # that pair is met again, before the next place
        tokens[seconds - 1] = NOTHING
        tokens[seconds] = NOTHING
        tokens[ends - 1] = -2 - token
        tokens[places] = token
        weights = self._corpus.weights(places)
        self._lose(before, weights, BITS, left)
        self._lose(after, weights, 0, right << BITS)
        return places

    def _lose(self, neighbours: Tokens, weights: Ints, shift: int, other: int) -> None:
        """Pairs `neighbour << shift | other` are gone, each as often as it weighs."""
        if len(neighbours) > _MANY:
            weights = np.bincount(neighbours + 1, weights=weights)[1:].astype(np.int64)
            keys = np.arange(len(weights), dtype=np.int64) << shift | other
            tracked = weights > 0
        else:
            keys = neighbours.astype(np.int64) << shift | other
            tracked = neighbours >= 0
        tracked &= self._filter.take(slots(keys, _FILTER_BITS))
        for key, lost in zip(keys[tracked].tolist(), weights[tracked].tolist(), strict=True):
            count = self._counts.get(key)
            if count is None:
                continue
            if count - lost < self._floor:
                del self._counts[key], self._places[key]
            else:
                self._counts[key] = count - lost

    def _gain(self, places: Ints, token: int) -> None:
        """Track the pairs of a new token, which stands at `places`."""
        weights = self._corpus.weights(places)
        before, after = self._corpus.before(places), self._corpus.tokens.take(places + len(self.spellings[token]))
        after[after == token] = NOTHING  # two new tokens: counted as the one before the other
        self._gain_side(before, weights, places - self._corpus.lengths.take(before), BITS, token)
        self._poll()
        self._gain_side(after, weights, places, 0, token << BITS)

    def _gain_side(self, neighbours: Tokens, weights: Ints, places: Ints, shift: int, other: int) -> None:
        order = neighbours.argsort(kind="stable")
        neighbours = neighbours.take(order)
        heads = run_heads(neighbours)
        counts = np.add.reduceat(weights.take(order), heads)
        often = ((counts >= self._floor) & (neighbours.take(heads) >= 0)).nonzero()[0]
        if not len(often):
            return
        standing = places.astype(np.int32).take(order)
        starts, stops = heads.take(often), np.append(heads[1:], len(order)).take(often)
        keys = neighbours.take(starts).astype(np.int64) << shift | other
        self._filter[slots(keys, _FILTER_BITS)] = True
        columns = (keys, counts.take(often), starts, stops)
        for key, count, start, stop in zip(*(column.tolist() for column in columns), strict=True):
            self._counts[key] = count
            self._places[key] = standing[start:stop].copy()  # not a view, which would keep all of them
            heapq.heappush(self._queue, _item(key, count))


def _item(key: int, count: int) -> int:
    """Pairs in the order of these numbers are in the order in which they are merged."""
    return (-count << _KEY_BITS) | key


def _alternate(places: Ints, seconds: Ints) -> Flags:
    """Of overlapping pairs (aaaa) every other one, from the left."""
    numbers = np.arange(len(places))
    first = np.ones(len(places), np.bool_)
    np.not_equal(seconds[:-1], places[1:], out=first[1:])
    since = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    chosen: Flags = since % 2 == 0
    return chosen
