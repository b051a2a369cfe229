"""Best-fit packing: documents into sequences so that as little as possible is padding.

The algorithm is best-fit decreasing: the longest document first, each into the fullest pack that has
room for it. It works on the histogram of lengths, on all documents of one length and all packs with
the same room at once (Krell, Kosec, Perez and Fitzgibbon, "Efficient Sequence Packing without
Cross-contamination", 2021, there "longest-pack-first histogram-packing"), so its time depends on how
many lengths there are, not on how many documents.

No torch, no Qt.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_core.data.order import permute

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placements:
    """Which packs take documents of which length, longest first; one row says it for many packs.

    Row i: each of the `count[i]` packs from `first[i]` on takes `each[i]` documents of `size[i]`.
    """

    first_pack: IntArray
    num_packs: IntArray
    documents_per_pack: IntArray
    length: IntArray
    total_packs: int


class _OpenPacks:
    """Ranges of packs by the room that is left in them."""

    def __init__(self) -> None:
        self._free_lengths: list[int] = []  # that occur, ascending
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # room: (first pack, number of packs)

    def add(self, room: int, first: int, count: int) -> None:
        if not room or not count:
            return
        if room not in self._ranges:
            insort(self._free_lengths, room)
            self._ranges[room] = []
        self._ranges[room].append((first, count))

    def pop_best_fit(self, size: int) -> tuple[int, int, int] | None:
        """Room, first pack and number of packs of a range that has just room enough for `size`."""
        at = bisect_left(self._free_lengths, size)
        if at == len(self._free_lengths):
            return None
        room = self._free_lengths[at]
        first, count = self._ranges[room].pop()
        if not self._ranges[room]:
            del self._ranges[room], self._free_lengths[at]
        return room, first, count


def best_fit(histogram: npt.NDArray[Any], capacity: int) -> Placements:
    """Pack documents, of which `histogram[n]` are n positions long, n from 0 to `capacity`.

    Documents of length 0 go nowhere. What comes out is what packing one by one would, but for which
    of several equal packs or documents is taken.
    """
    opened, packs = _OpenPacks(), 0
    rows: list[tuple[int, int, int, int]] = []
    for size in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[size]) if size else 0
        while left:
            found = opened.pop_best_fit(size)
            if found is None:
                found = capacity, packs, -(-left // (capacity // size))
                packs += found[2]
            room, first, count = found
            each = room // size  # once it has one of them a pack is fuller: it gets all that fit
            whole = min(count, left // each)
            rest = left - whole * each if whole < count else 0  # fewer than `each`, into one more pack
            for begin, number, taken in ((first, whole, each), (first + whole, 1, rest)):
                if number and taken:
                    rows.append((begin, number, taken, size))
                    opened.add(room - taken * size, begin, number)
                    left -= number * taken
            used = whole + (rest > 0)
            opened.add(room, first + used, count - used)
    first_, count_, each_, size_ = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Placements(first_, count_, each_, size_, packs)


def pack(sizes: npt.NDArray[Any], capacity: int, key: int) -> tuple[IntArray, IntArray]:
    """Packs of `capacity` positions for documents of `sizes` (1 to capacity): (members, offsets).

    Pack i holds the documents members[offsets[i]:offsets[i + 1]], numbers that count from 0. A keyed
    permutation says which of the documents of one length goes where, and in what order packs come, so
    packs are mixed; the same arguments give the same packs on every machine.
    """
    placed = best_fit(np.bincount(sizes, minlength=capacity + 1), capacity)
    mixed = permute(np.arange(len(sizes), dtype=np.int64), max(1, len(sizes)), key, 0)
    longest_first = mixed[np.argsort(-sizes[mixed].astype(np.int32), kind="stable")]
    packs = permute(_pack_by_document(placed), max(1, placed.total_packs), key, 1)
    offsets = np.zeros(placed.total_packs + 1, dtype=np.int64)
    np.cumsum(np.bincount(packs, minlength=placed.total_packs), out=offsets[1:])
    return longest_first[np.argsort(packs, kind="stable")], offsets


def _pack_by_document(placed: Placements) -> IntArray:
    """The pack of every document, in the order in which documents were placed."""
    taken = placed.num_packs * placed.documents_per_pack
    within = np.arange(int(taken.sum()), dtype=np.int64) - np.repeat(np.cumsum(taken) - taken, taken)
    return np.asarray(
        np.repeat(placed.first_pack, taken) + within // np.repeat(placed.documents_per_pack, taken), np.int64
    )


def expected_unpacked_fill(histogram: npt.NDArray[Any], batch_size: int, multiple: int) -> float:
    """The share of positions that hold tokens when every document has a sequence of its own.

    Expected for batches drawn at random and padded to the longest document in them, rounded up to a
    `multiple`: the longest of B is at most w long with probability F(w)^B. 0..1; 1 where there is nothing.
    """
    capacity, documents = len(histogram) - 1, int(histogram.sum())
    if not documents:
        return 1.0
    widths = np.append(np.arange(0, capacity, multiple), capacity)
    longest = (np.cumsum(histogram)[widths] / documents) ** batch_size
    width = float(widths[0] * longest[0] + (widths[1:] * np.diff(longest)).sum())
    return float(np.arange(capacity + 1) @ histogram) / documents / max(width, 1.0)
