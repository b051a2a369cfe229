"""Figures about documents that need no more memory for more of them: lengths, duplicates, steps.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.protocol import LengthBin

_OCTAVES: Final = 40  # documents of up to 2**40 tokens
_FINEST: Final = 32  # parts of an octave
_BINS: Final = 40  # bars of a histogram at most; on from about half as many
_AT_ONCE: Final = 1_000_000
_HELD: Final = 4 * 1024 * 1024  # hashes counted at once: 32 MiB, three times that while they are sorted


# --- how long documents are ------------------------------------------------------------------------


def _edges(parts: int) -> npt.NDArray[np.int64]:
    """0, 1, 2, 4, 8 … and `parts` - 1 evenly spaced edges between each two of them, where they are whole."""
    powers = 2 ** np.arange(_OCTAVES, dtype=np.int64)
    inner = powers[:, None] + powers[:, None] * np.arange(parts, dtype=np.int64) // parts
    return np.unique(np.concatenate([[0], inner.ravel()]))


class Lengths:
    """Counts lengths in tokens. Every bar begins and ends at a figure that people read easily."""

    def __init__(self, limit: int) -> None:
        """`limit`: the tokens that fit into a sequence (one more than `max_seq_len`: the last is only predicted)."""
        self._limit = limit
        self._fine = _edges(_FINEST)
        self._counts = np.zeros(len(self._fine), np.int64)
        self.documents = self.tokens = self.longest = 0
        self.longer = self.beyond = 0  # documents over the limit, and their tokens behind it
        self.within = 0  # tokens up to the limit

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count documents of these lengths."""
        if not len(lengths):
            return
        places = np.searchsorted(self._fine, lengths, side="right") - 1
        self._counts += np.bincount(places, minlength=len(self._fine))
        over = lengths[lengths > self._limit] - self._limit
        self.documents += len(lengths)
        self.tokens += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max()))
        self.longer += len(over)
        self.beyond += int(over.sum())
        self.within = self.tokens - self.beyond

    def add_offsets(self, offsets: npt.NDArray[np.int64]) -> None:
        """Count the documents that begin at these offsets (the last one is their end), a part at a time."""
        for start in range(0, max(0, len(offsets) - 1), _AT_ONCE):
            self.add(np.diff(offsets[start : start + _AT_ONCE + 1]).astype(np.int64))

    def bins(self) -> list[LengthBin]:
        """Adjoining bars from the shortest to the longest document: about 32, fewer where lengths differ little."""
        there = np.flatnonzero(self._counts)
        if not len(there):
            return []
        shortest, longest = int(self._fine[there[0]]), int(self._fine[there[-1]])
        for parts in (32, 16, 8, 4, 2, 1):
            edges = _edges(parts)
            first = int(np.searchsorted(edges, shortest, side="right")) - 1
            last = int(np.searchsorted(edges, longest, side="right"))
            if last - first <= _BINS or parts == 1:
                break
        shown = edges[first : last + 1]
        totals = np.concatenate([[0], np.cumsum(self._counts)])
        sums = np.diff(totals[np.searchsorted(self._fine, shown)])
        return [
            LengthBin(start=int(start), stop=int(stop), documents=int(count))
            for start, stop, count in zip(shown[:-1], shown[1:], sums, strict=True)
        ]


# --- duplicates --------------------------------------------------------------------------------------


def count_duplicates(path: Path) -> int:
    """How many of the hashes in a file (uint64, little-endian) were there before in it. Exact.

    Of ten million different texts, two have the same hash of 64 bits once in about 370,000 such sets.
    Memory stays bounded: what does not fit at once is counted one range of values after another.
    """
    count = path.stat().st_size // 8 if path.exists() else 0
    if not count:
        return 0
    bits = (-(-count // _HELD) - 1).bit_length()
    with path.open("rb") as file:
        return count - sum(_different(file, bits, part) for part in range(2**bits))


def count_overlap(every: Path, held_out: Path) -> int:
    """How many of the hashes in `held_out` also belong to training data. `every` holds the hashes of both. Memory stays
    bounded as in `count_duplicates`."""
    count = held_out.stat().st_size // 8 if held_out.exists() else 0
    if not count:
        return 0
    bits = (-(-count // _HELD) - 1).bit_length()
    with every.open("rb") as of_all, held_out.open("rb") as of_some:
        return sum(_shared(of_all, of_some, bits, part) for part in range(2**bits))


def _shared(of_all: BinaryIO, of_some: BinaryIO, bits: int, part: int) -> int:
    """The same for the hashes that begin with the `bits` bits of `part`."""
    values, counts = np.unique(np.concatenate(list(_blocks(of_some, bits, part))), return_counts=True)
    if not len(values):
        return 0
    found = np.zeros(len(values), np.int64)
    for block in _blocks(of_all, bits, part):
        places = np.minimum(np.searchsorted(values, block), len(values) - 1)
        found += np.bincount(places[values[places] == block], minlength=len(values))
    return int(counts[found > counts].sum())


def _blocks(file: BinaryIO, bits: int, part: int) -> Iterator[npt.NDArray[np.uint64]]:
    """The values in a file that begin with the `bits` bits of `part`, a bounded number at a time."""
    file.seek(0)
    while len(block := np.fromfile(file, "<u8", _AT_ONCE)):
        yield block[block >> np.uint64(64 - bits) == part] if bits else block


def _different(file: BinaryIO, bits: int, part: int) -> int:
    """How many different values in the file begin with the `bits` bits of `part`."""
    held = np.zeros(0, np.uint64)
    waiting: list[npt.NDArray[np.uint64]] = []
    length = 0
    for chosen in _blocks(file, bits, part):
        waiting.append(chosen)
        length += len(chosen)
        if length >= _HELD:  # many of the same value: they must not pile up
            held, waiting, length = _unique([held, *waiting]), [], 0
    return len(_unique([held, *waiting]))


def _unique(parts: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """The different values, sorted: a fifth of the time that `np.unique` takes."""
    values = np.concatenate(parts)
    values.sort()
    fresh = np.ones(len(values), np.bool_)
    fresh[1:] = values[1:] != values[:-1]
    return np.asarray(values[fresh], np.uint64)


# --- steps -------------------------------------------------------------------------------------------


class EpochSteps(NamedTuple):
    """The optimizer updates of one epoch."""

    full: int  # of a whole effective batch
    rest: int  # samples of the short one at the end; 0: there is none

    @property
    def total(self) -> int:
        """What `train.loop` counts: the short one is a step like the others."""
        return self.full + (self.rest > 0)


def steps_per_epoch(samples: int, batch_size: int, accumulation: int) -> EpochSteps:
    """How one epoch of `samples` falls into optimizer updates.

    10,000,000 samples in micro-batches of 32, three a step: 10,000,000 / (32 x 3) = 104,166.7, so 104,166 updates of
    96 samples each. The 64 samples that are left make update number 104,167, whose loss is the mean over its own
    tokens (`train/loop.py`).
    """
    full, rest = divmod(samples, batch_size * accumulation)
    return EpochSteps(full, rest)
