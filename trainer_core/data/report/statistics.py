"""Length histogram, duplicate counts and steps per epoch, in memory that does not grow with the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data.sequences import divide_sides
from trainer_core.data.token_files import Split
from trainer_core.protocol import LengthBin, PreferenceCounts

_MAX_BINS: Final = 40
_BLOCK_VALUES: Final = 1_000_000  # values read at once
_BLOCK_DOCUMENTS: Final = 1 << 19  # documents whose spans are read at once
_MAX_HASHES_IN_MEMORY: Final = 4 * 1024 * 1024  # 32 MiB
_ONE: Final = np.uint64(1)

Hashes = npt.NDArray[np.uint64]


class LengthStats(NamedTuple):
    """Lengths of documents in tokens."""

    longest: int = 0
    over_limit: int = 0  # documents
    bins: Sequence[LengthBin] = ()  # adjoining, from the shortest to the longest document; at most 40


def measure_lengths(offsets: Sequence[npt.NDArray[np.int64]], limit: int) -> LengthStats:
    """Measure the documents between adjacent `offsets` of each split; `limit`: the length of a whole sequence."""
    ranges = [(int(lengths.min()), int(lengths.max())) for lengths in _iter_lengths(offsets)]
    if not ranges:
        return LengthStats()
    edges = _bin_edges(min(shortest for shortest, _ in ranges), longest := max(longest for _, longest in ranges))
    over_limit = sum(int(np.count_nonzero(lengths > limit)) for lengths in _iter_lengths(offsets))
    counts = sum(np.histogram(lengths, edges)[0] for lengths in _iter_lengths(offsets))
    rows = zip(edges[:-1].tolist(), edges[1:].tolist(), np.asarray(counts).tolist(), strict=True)
    bins = [LengthBin(start=start, stop=stop, documents=count) for start, stop, count in rows]
    return LengthStats(longest, over_limit, bins)


def _iter_lengths(offsets: Sequence[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    for split in offsets:
        for start in range(0, len(split) - 1, _BLOCK_VALUES):
            yield np.diff(split[start : start + _BLOCK_VALUES + 1])


def _bin_edges(shortest: int, longest: int) -> npt.NDArray[np.int64]:
    """Round numbers that enclose both lengths: 0, powers of two, and as many even steps between two as bins allow."""
    powers = 2 ** np.arange(longest.bit_length() + 1, dtype=np.int64)
    for steps in (32, 16, 8, 4, 2, 1):
        inner = powers[:, None] + powers[:, None] * np.arange(steps, dtype=np.int64) // steps
        edges = np.unique([0, *inner.ravel()])
        first, last = np.searchsorted(edges, [shortest, longest], side="right")
        edges = edges[first - 1 : last + 1]
        if len(edges) <= _MAX_BINS + 1:
            break
    return edges


def conversation_offsets(split: Split) -> npt.NDArray[np.int64]:
    """Starts of all conversations of preferences in their tokens, and the number of tokens."""
    boundaries = split.spans[split.spans[:, 0] == split.spans[:, 1], 0]
    return np.union1d(split.offsets, split.offsets[:-1] + boundaries)


def measure_preferences(splits: Iterable[Split], sides: int, equal: int, swapped: int) -> PreferenceCounts:
    """The answers in preferences; `sides`, `equal` and `swapped` as given."""
    answers, tokens = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for split in splits:
        for first in range(0, split.documents, _BLOCK_DOCUMENTS):
            bounds = split.span_offsets[first : first + _BLOCK_DOCUMENTS + 1]
            lengths = np.diff(split.offsets[first : first + _BLOCK_DOCUMENTS + 1])
            parts = divide_sides(lengths, split.spans[bounds[0] : bounds[-1]], bounds - bounds[0])
            trained = np.concatenate([[0], np.cumsum(np.diff(parts[1], axis=1))])
            answers += (parts[0] > 0).reshape(-1, 2).sum(0)
            tokens += np.diff(trained[parts[2]]).reshape(-1, 2).sum(0)
    chosen, rejected = (tokens / np.maximum(answers, 1)).tolist()
    return PreferenceCounts(
        sides=sides,
        chosen=int(answers[0]),
        rejected=int(answers[1]),
        chosen_tokens=chosen,
        rejected_tokens=rejected,
        equal=equal,
        swapped=swapped,
    )


# --- duplicates --------------------------------------------------------------------------------------


def count_duplicates(*paths: Path) -> int:
    """Number of hashes in files (uint64, little-endian) that occur earlier in them.

    Two of ten million different texts share a 64-bit hash with a probability of about 1 in 370,000.
    """
    count = 0
    for parts in _iter_partitions(*paths):
        hashes = np.concatenate(parts)
        hashes.sort()
        count += int(np.count_nonzero(hashes[1:] == hashes[:-1]))
    return count


def count_swapped(*paths: Path) -> int:
    """Number of hashes in files that occur in them with another lowest bit; see `encode_batch`."""
    count = 0
    for parts in _iter_partitions(*paths):
        hashes = np.concatenate(parts)
        count += int(np.isin(hashes ^ _ONE, hashes).sum())
    return count


def count_overlap(train: Path, held_out: Path) -> int:
    """Number of hashes in `held_out` that are also in `train`."""
    return sum(int(np.isin(held, known).sum()) for known, held in _iter_partitions(train, held_out))


def _iter_partitions(*paths: Path) -> Iterator[list[Hashes]]:
    """Hashes of files, one array a file, in parts that fit in memory. Hashes that are equal but for the lowest bit are
    in the same part."""
    count = -(-sum(path.stat().st_size for path in paths) // (8 * _MAX_HASHES_IN_MEMORY))
    for part in range(count):
        yield [
            np.concatenate([block[(block >> _ONE) % count == part] for block in _iter_blocks(path)]) for path in paths
        ]


def _iter_blocks(path: Path) -> Iterator[Hashes]:
    yield np.zeros(0, np.uint64)  # concatenation needs an array
    with path.open("rb") as file:
        while len(block := np.fromfile(file, "<u8", _BLOCK_VALUES)):
            yield block


def steps_per_epoch(samples: int, effective_batch: int) -> tuple[int, int]:
    """Optimizer updates of one epoch: all, and those with a whole effective batch. The last one may have less."""
    full, rest = divmod(samples, effective_batch)
    return full + (rest > 0), full
