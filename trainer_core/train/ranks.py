"""Several processes that train one model together, each with a GPU (or some cores) of its own.

Rank 0 leads: it alone polls, decides, reports and saves, and tells the others what to do next; between two orders they
wait for one. So a Stop, a Pause or a going back needs no vote, and comes to pass for all at the same step. What only a
rank itself can know, that its memory has ended, all learn of before anything is added up.

Every rank reads the same window of micro-batches and computes its rows of it; gradients are added up. So the effective
batch, the order of the data and all counters are those of one process.

Here is what one process does alone, and how a batch is divided; `joined.py` is one of several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.loader import Batch, concat_batches
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir

_UNEVEN: Final = 1.15  # times its part: what a rank may compute more, for micro-batches of one size


class RankLost(RuntimeError):  # noqa: N818 - what has come to pass
    """Another rank has gone, so there is no going on."""


class EndedByLeader(Exception):  # noqa: N818 - no error
    """Rank 0 has said that it is over."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Ranks:
    """This process alone: all is its own, and nobody need be told anything."""

    rank, size = 0, 1

    def tell(self, do: str, **about: Any) -> None:
        """Rank 0: what all others are to do now."""

    def same(self, make: Callable[[Any], Any], chosen: Callable[[Any], Any], before: Any) -> Any:
        """What `make` gives; on other ranks made of what `chosen` says of rank 0's instead of `before`."""
        return make(before)

    def most(self, *values: int, poll: Callable[[], None] | None = None) -> list[int]:
        """The largest of each value on any rank. Rank 0 calls `poll` while it waits, which may raise."""
        return list(values)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Make each tensor (contiguous, all of one type and device) the sum of it on all ranks."""

    def add_up_gradients(self, weights: Iterable[Tensor], loss: Tensor) -> None:
        """Make the gradients, and the summed loss of a step, those of all ranks together."""

    def reserve(self, tensors: Sequence[Tensor]) -> None:
        """Take the memory now that adding up such tensors needs."""

    def seed(self, seed: int, step: int) -> None:
        """Before a step that draws: ranks draw differently, and a resumed step draws the same again."""

    def share(self, window: list[Batch], most: int) -> list[Batch]:
        """The part of a step's micro-batches that this rank computes, at most so many sequences at once."""
        return window


ALONE: Final = Ranks()


class Join(Protocol):
    """Wait until all ranks are there, and have them train this; `data` says what they read (see `following.py`)."""

    def __call__(
        self, config: Config, device: torch.device, precision: str, data: dict[str, Any], source: Path | None = None
    ) -> Ranks: ...


@contextlib.contextmanager
def beside(config: Config, run: RunDir, context: RunContext) -> Iterator[Join]:
    """The other ranks of a run, from rank 0, where there are to be some; gives what joins them."""
    if config.ranks == 1:
        yield lambda *what, **more: ALONE
        return
    from trainer_core.train.leading import Others  # there are builds of torch without what it needs

    with Others(config, run, context) as others:
        yield others.join


# --- the same step, divided ------------------------------------------------------------------------------


def share_of(config: Config, alike: bool = True) -> Config:
    """The configuration with the micro-batches that one rank computes in a step, at most. `alike`: all are as wide."""
    if config.ranks == 1:
        return config
    counts = [_counts(config, rank, alike) for rank in range(config.ranks)]
    return msgspec.structs.replace(
        config, batch_size=max(map(max, filter(None, counts))), gradient_accumulation_steps=max(map(len, counts))
    )


def rows_of(config: Config, rank: int, alike: bool) -> int:
    """Sequences that a rank computes at once in every step but the last ones of an epoch."""
    return _counts(config, rank, alike)[0]


def _counts(config: Config, rank: int, alike: bool) -> list[int]:
    """The sequences of each piece."""
    sizes = [config.batch_size] * config.gradient_accumulation_steps
    return [sum(rows.stop - rows.start for _, rows in piece) for piece in pieces(sizes, rank, config.ranks, alike)]


def deal(window: list[Batch], rank: int, size: int, most: int) -> list[Batch]:
    """The micro-batches that a rank computes of a step's, which lie in system memory."""
    alike = len({batch.input_ids.shape[1] for batch in window}) == 1
    sizes = [batch.input_ids.shape[0] for batch in window]
    return [_taken(window, piece) for piece in pieces(sizes, rank, size, alike, most)]


def _taken(window: list[Batch], piece: Piece) -> Batch:
    parts = []
    for number, rows in piece:
        batch = window[number]
        whole = rows == slice(0, batch.input_ids.shape[0])
        parts.append(batch if whole else batch.select_rows(rows))
    return parts[0] if len(parts) == 1 else concat_batches(parts)


Piece = list[tuple[int, slice]]
"""Rows of micro-batches, by their numbers: one micro-batch of a rank."""


def pieces(sizes: list[int], rank: int, size: int, alike: bool, most: int = 0) -> list[Piece]:
    """How a rank takes its part of micro-batches of so many rows: in as few pieces as are no larger than those (nor
    than `most`, as where an epoch ends the window is shorter).

    Micro-batches that are `alike` are taken as one, and all pieces of a rank have as many rows where that can be: what
    is compiled is compiled for one count of rows. Others stay apart.
    """
    if not alike:
        return [[cut] for cut in cuts(sizes, rank, size)]
    total = sum(sizes)
    many = -(-total // (size * min(max(sizes), most or max(sizes))))
    even = total % many == 0 and many * -(-total // (many * size)) * size <= _UNEVEN * total
    unit = many if even else 1
    first, last = (unit * (total // unit * end // size) for end in (rank, rank + 1))
    bounds = [first + (last - first) * number // many for number in range(many + 1)]
    return [_rows(sizes, start, stop) for start, stop in pairwise(bounds) if start < stop]


def cuts(sizes: list[int], rank: int, size: int) -> list[tuple[int, slice]]:
    """Which rows of which micro-batches a rank computes: as many as the others, and neighbours.

    `sizes` are the rows of each micro-batch.
    """
    total = sum(sizes)
    return _rows(sizes, total * rank // size, total * (rank + 1) // size)


def _rows(sizes: list[int], first: int, last: int) -> Piece:
    """The rows from `first` to before `last`, counted through all micro-batches."""
    found, begin = [], 0
    for number, count in enumerate(sizes):
        start, stop = max(first - begin, 0), min(last - begin, count)
        if start < stop:
            found.append((number, slice(start, stop)))
        begin += count
    return found
