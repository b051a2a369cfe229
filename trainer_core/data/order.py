"""Order of samples: a keyed permutation instead of a shuffle list.

`permute` is a Feistel network over the smallest even number of bits that holds all indices, applied again until the
result is an index (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 3). It is a
pure function of (seed, epoch, position): seeking is O(1), and loader processes do not change the order.

No torch, no Qt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

SHUFFLE_BLOCK_SIZE: Final = 2048  # neighbouring samples that stay together without a token cache
_ROUNDS: Final = 8  # four make a permutation look random; small domains of a few bits need more
_POSITIONS_PER_CALL: Final = 1024  # numpy takes 0.3 ms for one position and hardly more for a thousand


def keyed_hash(key: str, number: int) -> int:
    """A 64-bit hash of a number under a key: the same on every machine and Python."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), key=key.encode("utf-8")[:64], digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def permute(positions: Indices, count: int, *key: int) -> Indices:
    """The indices in [0, count) at `positions` of the permutation with a key such as (seed, epoch).

    Distinct positions give distinct indices. `positions`: int64, any shape, each in [0, count).
    """
    half = max(1, -(-max(1, (count - 1).bit_length()) // 2))
    keys = _round_keys(key)
    values = _feistel(positions.astype(np.uint64), half, keys)
    outside = values >= count
    while outside.any():  # the domain is at most four times `count`: few rounds
        values[outside] = _feistel(values[outside], half, keys)
        outside = values >= count
    return values.astype(np.int64)


def permute_in_blocks(positions: Indices, count: int, block_size: int, *key: int) -> Indices:
    """As `permute`, but shuffles blocks of `block_size` neighbours, and the samples within each.

    The remainder that fills no block comes last.
    """
    blocks = count // block_size
    indices = np.empty_like(positions)
    for number in np.unique(positions // block_size).tolist():
        in_block = positions // block_size == number
        start = number * block_size
        size = block_size if number < blocks else count - start
        if number < blocks:
            start = block_size * int(permute(np.array([number], np.int64), blocks, *key)[0])
        indices[in_block] = start + permute(positions[in_block] % block_size, size, *key, number)
    return indices


def fixed_sample(count: int, size: int, *key: int) -> Indices:
    """At most `size` distinct indices in [0, count), ascending, drawn uniformly: the same for the same arguments.

    A larger sample contains every smaller one of the same count and key.
    """
    if size >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(permute(np.arange(size, dtype=np.int64), count, *key))


def _round_keys(key: tuple[int, ...]) -> list[np.uint64]:
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8 * _ROUNDS).digest()
    return [np.uint64(int.from_bytes(digest[i : i + 8], "little")) for i in range(0, len(digest), 8)]


def _feistel(values: npt.NDArray[np.uint64], half: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (splitmix64(right ^ key) & mask)
    return (left << shift) | right


def splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit in reaches every bit out."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The shuffled samples of each epoch, in micro-batches from any position.

    The last micro-batch of an epoch may be smaller. Positions count samples, so a run can resume with another
    `batch_size`.
    """

    samples: int
    batch_size: int
    seed: int = 0
    block_size: int = 0  # neighbours that stay together; 0: none

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Indices]:
        """Sample indices of each micro-batch from position `start` to the end of an epoch."""
        step = self.batch_size * max(1, _POSITIONS_PER_CALL // self.batch_size)
        for first in range(start, self.samples, step):
            positions = np.arange(first, min(first + step, self.samples), dtype=np.int64)
            if self.block_size:
                order = permute_in_blocks(positions, self.samples, self.block_size, self.seed, epoch)
            else:
                order = permute(positions, self.samples, self.seed, epoch)
            yield from np.split(order, range(self.batch_size, len(order), self.batch_size))
