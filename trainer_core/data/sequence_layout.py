"""Works out which conversations stand in which training sequence, and keeps it beside the tokens.

The files are described in `sequences.py`. A cache has one arrangement for each `max_seq_len`, with and
without packing; a second run, or a second process, finds it done.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from trainer_core.config import Config
from trainer_core.data import cache
from trainer_core.data.packing import IntArray, expected_unpacked_fill, pack
from trainer_core.data.sequences import VERSION, WIDTH_MULTIPLE, fit_conversations, sequences_folder
from trainer_core.data.token_files import Split
from trainer_core.data.uncached import SHUFFLE_BLOCK_SIZE
from trainer_core.progress import Reporter

SPLITS: Final = ("train", "validation")
_BLOCK_DOCUMENTS: Final = 1 << 19  # documents packed together: 50 MB, and more would not fill packs better


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """The sequences of one split of conversations."""

    samples: int  # sequences
    used: int  # conversations in them
    positions: int  # of the sequences, that hold tokens
    truncated: int  # conversations cut at max_seq_len
    dropped: int  # conversations of which nothing to train on would be left

    def fill_ratio(self, max_seq_len: int) -> float:
        """The share of positions that hold tokens when every sequence is `max_seq_len` long, 0..1."""
        return self.positions / max(1, self.samples * max_seq_len)


def build_sequences(
    cache_folder: Path, vocab_size: int, config: Config, reporter: Reporter, block_size: int = 0
) -> dict[str, SequenceStats]:
    """Arrange the conversations of both splits of a finished cache, or find that done already.

    Holds `at_once` of them in memory, and only these can share sequences; 0: as many as is good.

    Two processes may do so at once. Raises `disk.full`, `disk.not_writable` and what `reporter.poll` raises.
    """
    block_size = block_size or (_BLOCK_DOCUMENTS if config.token_cache else SHUFFLE_BLOCK_SIZE)
    folder = sequences_folder(cache_folder, config.max_seq_len, config.packing)
    meta = cache.read_meta(folder)
    while meta is None:
        with cache.build(folder, reporter) as working:
            if working is not None:
                splits = {name: Split(cache_folder / name, vocab_size) for name in SPLITS}
                counts = {
                    name: _build_split(working / name, splits[name], config, reporter, block_size) for name in SPLITS
                }
                made_from = {"max_seq_len": config.max_seq_len, "packed": config.packing, "version": VERSION}
                for split in splits.values():
                    split.close()
                cache.write_meta(working, {name: asdict(one) for name, one in counts.items()}, made_from)
        meta = cache.read_meta(folder)
    return {name: SequenceStats(**meta[name]) for name in SPLITS}


def _build_split(folder: Path, split: Split, config: Config, reporter: Reporter, at_once: int) -> SequenceStats:
    documents, limit = split.documents, config.max_seq_len
    lengths = np.zeros(limit + 1, dtype=np.int64)
    samples = truncated = 0
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        members, offsets = (stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ("members", "offsets"))
        for first in range(0, documents, at_once):
            last = min(first + at_once, documents)
            fitting = fit_conversations(split, first, last, limit)
            used = np.flatnonzero(fitting.usable)
            base = int(lengths.sum())
            lengths += np.bincount(fitting.positions[used], minlength=limit + 1)
            truncated += int(np.count_nonzero(fitting.truncated))
            if config.packing:
                order, begins = pack(fitting.positions[used], limit, key=first)
                used = used[order]
                _write(offsets, begins[:-1] + base, "<i8")
                samples += len(begins) - 1
            _write(members, used + first, "<u4")
            reporter.progress("preparing", last, documents, "documents")
            reporter.poll()
        used_in_all = int(lengths.sum())
        if config.packing:
            _write(offsets, np.array([used_in_all]), "<i8")
        elif used_in_all == documents:  # then the list says nothing
            members.truncate(0)
    (folder / "lengths.bin").write_bytes(lengths.astype("<i8").tobytes())
    return SequenceStats(
        samples=samples if config.packing else used_in_all,
        used=used_in_all,
        positions=int(np.arange(limit + 1) @ lengths),
        truncated=truncated,
        dropped=documents - used_in_all,
    )


def _write(file: BinaryIO, numbers: IntArray, kind: str) -> None:
    file.write(numbers.astype(kind).tobytes())


def unpacked_fill_ratio(cache_folder: Path, config: Config) -> float:
    """The share of positions of the training batches that would hold tokens with one conversation a sequence."""
    folder = sequences_folder(cache_folder, config.max_seq_len, config.packing)
    lengths = np.fromfile(folder / "train" / "lengths.bin", "<i8")
    return expected_unpacked_fill(lengths, config.batch_size, WIDTH_MULTIPLE)
