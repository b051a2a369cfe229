"""The order of samples: a keyed permutation that is a pure function of seed, epoch and position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainer_core.data.order import EpochOrder, keyed_hash, permute


def permutation(count: int, seed: int = 1, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(count, dtype=np.int64), count, seed, epoch)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16, 17, 100, 255, 256, 257, 1000, 4097, 65_537, 200_001])
def test_the_order_is_a_permutation(count: int) -> None:
    for seed in (0, 1, 2**63 - 1):
        assert np.array_equal(np.sort(permutation(count, seed)), np.arange(count))


def test_a_subset_of_positions_is_permuted_as_in_the_full_order() -> None:
    order = permutation(10_007)
    positions = np.array([9_999, 3, 4, 5_000], dtype=np.int64)
    assert np.array_equal(permute(positions, 10_007, 1, 0), order[positions])


def test_epochs_and_seeds_have_different_orders() -> None:
    first = permutation(5000, seed=1, epoch=0)
    for other in (permutation(5000, seed=1, epoch=1), permutation(5000, seed=2, epoch=0)):
        assert (first == other).mean() < 0.01


def test_the_order_is_the_same_on_every_machine() -> None:
    assert permutation(10, seed=1234, epoch=2).tolist() == [8, 6, 9, 7, 3, 1, 0, 2, 5, 4]
    assert keyed_hash("validation", 7) == 13386933604591982618


def test_positions_and_samples_are_uncorrelated() -> None:
    count = 100_000
    order = permutation(count)
    assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 0.01
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.01
    # Over many epochs, each sample is in each tenth of the order about equally often.
    positions = np.stack([np.argsort(permutation(50, epoch=epoch)) for epoch in range(2000)])
    counts = np.stack([np.bincount(positions[:, i] // 5, minlength=10) for i in range(50)])
    chi2 = ((counts - 200) ** 2 / 200).sum(axis=1)
    assert chi2.mean() < 11  # expected 9 with nine degrees of freedom


ORDERS = [
    EpochOrder(1003, 8, seed=5),
    EpochOrder(1003, 8, seed=5, block_size=64),
    EpochOrder(40, 8, seed=5, block_size=64),
    EpochOrder(5, 8, seed=5),
]


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_contains_every_sample_once_from_any_start(order: EpochOrder) -> None:
    samples = np.concatenate(list(order.batches(1)))
    assert sorted(samples.tolist()) == list(range(order.samples))
    for start in (0, 1, 8, order.samples - 1, order.samples):
        rest = [index for batch in order.batches(1, min(start, order.samples)) for index in batch.tolist()]
        assert rest == samples[start:].tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_does_not_depend_on_the_batch_size(order: EpochOrder) -> None:
    samples = np.concatenate(list(order.batches(1)))
    for size in (1, 3, 64, 2000):
        other = replace(order, batch_size=size)
        assert np.array_equal(np.concatenate(list(other.batches(1))), samples)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 6400])
def test_shuffling_keeps_blocks_of_neighbours_together(count: int) -> None:
    orders = [np.concatenate(list(EpochOrder(count, count, 1, block_size=64).batches(epoch))) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(count))
        for start in range(0, count - 63, 64):
            assert np.ptp(order[start : start + 64]) == 63
    if count > 64:
        assert not np.array_equal(*orders)


def test_only_the_last_batch_is_smaller_and_none_is_empty() -> None:
    assert [len(positions) for positions in EpochOrder(20, 8).batches()] == [8, 8, 4]
    assert [len(positions) for positions in EpochOrder(20, 8).batches(0, 5)] == [8, 7]
    assert len(list(EpochOrder(16, 8).batches())) == 2
    assert not list(EpochOrder(0, 8).batches())
