"""Divides the micro-batches of a step among ranks.

Every rank reads the same window of micro-batches and computes its rows of it, so the effective batch, the order of the
data and all counters are those of one process, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch, concat_batches

_UNEVEN: Final = 1.15  # times its share: what a rank may compute more, for micro-batches of one size

Piece = list[tuple[int, slice]]
"""Rows of micro-batches, by their numbers: one micro-batch of a rank."""


class Share(NamedTuple):
    """The micro-batches of one rank in a step, and the rows of those of every rank."""

    batches: list[Batch]
    rows: list[list[int]]

    def passes(self, max_sequences: int) -> int:
        """Largest number of forward passes of a rank, when each computes at most `max_sequences` sequences."""
        return max(sum(-(-count // max_sequences) for count in counts) for counts in self.rows)


def rank_config(config: Config, world_size: int, alike: bool = True) -> Config:
    """The configuration with the micro-batches that one rank computes in a step, at most. `alike`: all are as wide."""
    if world_size == 1:
        return config
    counts = [_full_counts(config, rank, world_size, alike) for rank in range(world_size)]
    return msgspec.structs.replace(
        config, batch_size=max(map(max, filter(None, counts))), gradient_accumulation_steps=max(map(len, counts))
    )


def rows_of(config: Config, rank: int, world_size: int, alike: bool) -> int:
    """Sequences that a rank computes at once in every step but the last ones of an epoch."""
    return _full_counts(config, rank, world_size, alike)[0]


def _full_counts(config: Config, rank: int, world_size: int, alike: bool) -> list[int]:
    return _counts(pieces([config.batch_size] * config.gradient_accumulation_steps, rank, world_size, alike))


def _counts(found: list[Piece]) -> list[int]:
    """The sequences of each piece."""
    return [sum(rows.stop - rows.start for _, rows in piece) for piece in found]


def divide(window: list[Batch], rank: int, world_size: int, max_rows: int) -> Share:
    """The share of a rank of a step's micro-batches, which are in system memory."""
    sizes = [batch.input_ids.shape[0] for batch in window]
    if world_size == 1:
        return Share(window, [sizes])
    alike = len({batch.input_ids.shape[1] for batch in window}) == 1
    shares = [pieces(sizes, number, world_size, alike, max_rows) for number in range(world_size)]
    return Share([_select(window, piece) for piece in shares[rank]], [_counts(share) for share in shares])


def without_labels(batch: Batch) -> Batch:
    """Its first sequence without labels: a pass over it has gradients of zero."""
    first = batch.select_rows(slice(0, 1))
    return replace(
        first,
        labels=torch.full_like(first.labels, IGNORE_INDEX),
        loss_tokens=0,
        row_loss_tokens=(0,),
        samples=0,
        preference=None if first.preference is None else torch.zeros_like(first.preference),
        pairs=0,
        row_pairs=(0,),
    )


def _select(window: list[Batch], piece: Piece) -> Batch:
    parts = []
    for number, rows in piece:
        batch = window[number]
        whole = rows == slice(0, batch.input_ids.shape[0])
        parts.append(batch if whole else batch.select_rows(rows))
    return parts[0] if len(parts) == 1 else concat_batches(parts)


def pieces(sizes: Sequence[int], rank: int, world_size: int, alike: bool, max_rows: int = 0) -> list[Piece]:
    """The share of a rank of micro-batches of `sizes` rows, in as few pieces as are no larger than those (nor than
    `max_rows`, for the shorter windows at the end of an epoch).

    Micro-batches that are `alike` are divided as one, and all pieces of a rank have as many rows where that is
    possible, because code is compiled for one number of rows. Others stay separate.
    """
    total = sum(sizes)
    if not alike:
        share = _rows(sizes, total * rank // world_size, total * (rank + 1) // world_size)
        return [[part] for part in share]
    many = -(-total // (world_size * min(max(sizes), max_rows or max(sizes))))
    even = total % many == 0 and many * -(-total // (many * world_size)) * world_size <= _UNEVEN * total
    unit = many if even else 1
    first, last = (unit * (total // unit * end // world_size) for end in (rank, rank + 1))
    bounds = [first + (last - first) * number // many for number in range(many + 1)]
    return [_rows(sizes, start, stop) for start, stop in pairwise(bounds) if start < stop]


def _rows(sizes: Sequence[int], first: int, last: int) -> Piece:
    """The rows from `first` to before `last`, counted through all micro-batches."""
    found, begin = [], 0
    for number, count in enumerate(sizes):
        start, stop = max(first - begin, 0), min(last - begin, count)
        if start < stop:
            found.append((number, slice(start, stop)))
        begin += count
    return found
