"""Assigns the conversations of a cache to training sequences, once per `max_seq_len` and packing.

The files are described in `sequences.py`. No torch, no Qt.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from trainer_core.config import Config
from trainer_core.data import cache
from trainer_core.data.order import permute
from trainer_core.data.sequences import (
    MEMBERS_FILE,
    OFFSETS_FILE,
    WIDTH_MULTIPLE,
    IntArray,
    fit_conversations,
    sequences_folder,
)
from trainer_core.data.token_files import SPLITS, Split
from trainer_core.data.uncached import SHUFFLE_BLOCK_SIZE
from trainer_core.progress import Reporter

_BLOCK_DOCUMENTS: Final = 1 << 19  # documents packed together: 50 MB; more would not fill sequences better


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """The sequences of one split of conversations."""

    samples: int  # sequences
    truncated: int  # conversations cut at max_seq_len
    dropped: int  # conversations without trained tokens after truncation
    lengths: list[int]  # conversations that take 0, 1, ... max_seq_len positions

    @property
    def positions(self) -> int:
        """Non-padding positions of all sequences."""
        return int(np.arange(len(self.lengths)) @ np.array(self.lengths))

    @property
    def fill_ratio(self) -> float:
        """Share of non-padding positions if every sequence is `max_seq_len` long, 0..1."""
        return self.positions / max(1, self.samples * (len(self.lengths) - 1))

    def unpacked_fill_ratio(self, batch_size: int) -> float:
        """Expected share of non-padding positions with one conversation per sequence, 0..1.

        Random batches are padded to their longest sequence, rounded up to a multiple of 8. The longest of B
        conversations has at most w positions with a probability of F(w)^B.
        """
        documents, max_seq_len = sum(self.lengths), len(self.lengths) - 1
        if not documents:
            return 1.0
        widths = np.append(np.arange(0, max_seq_len, WIDTH_MULTIPLE), max_seq_len)
        longest = (np.cumsum(self.lengths)[widths] / documents) ** batch_size
        width = float(widths[0] * longest[0] + (widths[1:] * np.diff(longest)).sum())
        return self.positions / documents / max(width, 1.0)


def build_sequences(
    cache_folder: Path, vocab_size: int, config: Config, reporter: Reporter, block_size: int = 0
) -> dict[str, SequenceStats]:
    """Assign the conversations of both splits of a complete cache to sequences, unless this is done already.

    Processes `block_size` documents at a time, which alone can share sequences; 0: the default. Several processes may
    call it at once. Raises `disk.full`, `disk.not_writable` and what `reporter.poll` raises.
    """
    block_size = block_size or (_BLOCK_DOCUMENTS if config.token_cache else SHUFFLE_BLOCK_SIZE)
    folder = sequences_folder(cache_folder, config.max_seq_len, config.packing)

    def write(working: Path) -> dict[str, Any]:
        stats = {}
        for name in SPLITS:
            split = Split(cache_folder / name, vocab_size)
            stats[name] = asdict(_build_split(working / name, split, config, reporter, block_size))
            split.close()
        return stats

    meta = cache.read_meta(folder) or cache.build(folder, reporter, write)
    return {name: SequenceStats(**meta[name]) for name in SPLITS}


def _build_split(folder: Path, split: Split, config: Config, reporter: Reporter, block_size: int) -> SequenceStats:
    documents, limit = split.documents, config.max_seq_len
    lengths = np.zeros(limit + 1, np.int64)
    samples = used = truncated = 0
    folder.mkdir(exist_ok=True)
    with (folder / MEMBERS_FILE).open("wb") as members_file, (folder / OFFSETS_FILE).open("wb") as offsets_file:
        for first in range(0, documents, block_size):
            last = min(first + block_size, documents)
            fit = fit_conversations(split, first, last, limit)
            numbers = np.flatnonzero(fit.usable)
            positions = fit.positions[numbers]
            if config.packing:
                members, offsets = pack(positions, limit, key=first)
            else:
                members, offsets = np.arange(len(numbers)), np.arange(len(numbers) + 1)
            _write(members_file, numbers[members] + first, "<u4")
            _write(offsets_file, offsets[:-1] + used, "<i8")
            samples += len(offsets) - 1
            used += len(numbers)
            truncated += int(np.count_nonzero(fit.truncated))
            lengths += np.bincount(positions, minlength=limit + 1)
            reporter.progress("preparing", last, documents, "documents")
            reporter.poll()
        _write(offsets_file, np.array([used]), "<i8")
    return SequenceStats(samples, truncated, documents - used, lengths.tolist())


def _write(file: BinaryIO, numbers: npt.NDArray[Any], kind: str) -> None:
    file.write(numbers.astype(kind).tobytes())


def pack(lengths: IntArray, capacity: int, key: int) -> tuple[IntArray, IntArray]:
    """Pack documents of `lengths` (1 to capacity) into sequences of `capacity` positions, best-fit decreasing.

    Longest document first, each into the fullest sequence with enough space. Returns (members, offsets): sequence i
    holds the documents members[offsets[i]:offsets[i + 1]]. A keyed permutation orders the sequences, and the documents
    of one length, so that sequences are mixed. The result depends only on the arguments.
    """
    mixed = permute(np.arange(len(lengths), dtype=np.int64), max(1, len(lengths)), key, 0)
    longest_first = mixed[np.argsort(-lengths[mixed], kind="stable")]
    sequence_of = np.empty(len(lengths), np.int64)
    spaces: list[int] = []  # sizes of the free space that occur, ascending
    with_space: dict[int, list[int]] = {}  # sequences by free space
    count = 0
    for index, length in enumerate(lengths[longest_first].tolist()):
        at = bisect_left(spaces, length)
        if at < len(spaces):
            space = spaces[at]
            sequence = with_space[space].pop()
            if not with_space[space]:
                del with_space[space], spaces[at]
        else:
            space, sequence, count = capacity, count, count + 1
        sequence_of[index] = sequence
        space -= length
        if space and space not in with_space:
            insort(spaces, space)
            with_space[space] = []
        if space:
            with_space[space].append(sequence)
    shuffled = permute(sequence_of, max(1, count), key, 1)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(shuffled, minlength=count), out=offsets[1:])
    return longest_first[np.argsort(shuffled, kind="stable")], offsets
