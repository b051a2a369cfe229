"""Length histogram, duplicates and steps per epoch: exact results in bounded memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.config import Config
from trainer_core.data.order import EpochOrder
from trainer_core.data.report import statistics
from trainer_core.data.report.statistics import (
    LengthStats,
    count_duplicates,
    measure_lengths,
    steps_per_epoch,
)
from trainer_core.train.schedule import Schedule

LENGTHS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 5_000_000)), min_size=1, max_size=80)


def length_stats(lengths: list[int], limit: int = 128) -> LengthStats:
    return measure_lengths([np.cumsum([0, *lengths])], limit)


@settings(max_examples=150, deadline=None)
@given(LENGTHS)
def test_every_document_is_counted_in_its_bin(lengths: list[int]) -> None:
    bins = length_stats(lengths).bins
    assert len(bins) <= 40
    assert all(left.stop == right.start for left, right in itertools.pairwise(bins))
    assert [sum(b.start <= length < b.stop for length in lengths) for b in bins] == [b.documents for b in bins]
    assert bins[0].documents
    assert bins[-1].documents


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 1000))
def test_documents_over_the_limit_are_counted_exactly(lengths: list[int], limit: int) -> None:
    stats = length_stats(lengths, limit)
    assert stats.over_limit == sum(length > limit for length in lengths)
    assert stats.longest == max(lengths)


def test_lengths_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [5, 1, 300, 7, 7, 64, 128, 2]
    expected = length_stats(lengths)
    monkeypatch.setattr(statistics, "_BLOCK_VALUES", 3)
    assert measure_lengths([np.cumsum([0, *lengths[:5]]), np.cumsum([0, *lengths[5:]])], 128) == expected
    assert measure_lengths([np.zeros(0, np.int64), np.zeros(1, np.int64)], 128).bins == ()


def test_bins_are_as_narrow_as_the_range_allows() -> None:
    assert [b.start for b in length_stats(list(range(200, 260))).bins][:4] == [200, 204, 208, 212]
    assert [b.start for b in length_stats([1, 100_000]).bins][:7] == [1, 2, 3, 4, 6, 8, 12]
    assert 20 <= len(length_stats([1, 100_000]).bins) <= 40
    assert len(length_stats([7]).bins) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.lists(st.integers(0, 59), max_size=120))
def test_the_number_of_duplicates_is_exact(
    tmp_path_factory: pytest.TempPathFactory, unique: list[int], repeated: list[int]
) -> None:
    hashes = unique + [unique[index % len(unique)] for index in repeated if unique]
    path = tmp_path_factory.mktemp("hashes") / "hashes.bin"
    path.write_bytes(np.array(hashes, "<u8").tobytes())
    assert count_duplicates(path) == len(hashes) - len(set(hashes))


@pytest.mark.parametrize("limit", [1, 7, 64, 4096])
def test_duplicates_do_not_depend_on_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(statistics, "_MAX_HASHES_IN_MEMORY", limit)
    monkeypatch.setattr(statistics, "_BLOCK_VALUES", 13)
    rng = np.random.default_rng(3)
    hashes = np.concatenate([rng.integers(0, 2**64, 300, np.uint64)] * 2 + [np.full(200, 7, np.uint64)])
    (tmp_path / "hashes.bin").write_bytes(rng.permutation(hashes).astype("<u8").tobytes())
    assert count_duplicates(tmp_path / "hashes.bin") == 300 + 199


def test_ten_million_samples_make_104166_full_steps_and_a_short_one() -> None:
    assert steps_per_epoch(10_000_000, 32 * 3) == (104_167, 104_166)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 5))
def test_steps_equal_those_of_the_training_loop(samples: int, batch: int, accumulation: int) -> None:
    steps, full = steps_per_epoch(samples, batch * accumulation)
    batches = [len(positions) for positions in EpochOrder(samples, batch).batches()]
    windows = [sum(batches[n : n + accumulation]) for n in range(0, len(batches), accumulation)]
    assert steps == len(windows)
    assert full == windows.count(batch * accumulation)
    config = Config(batch_size=batch, gradient_accumulation_steps=accumulation, max_steps=0, max_epochs=1)
    assert Schedule(config, samples).total_steps(0, 0) == steps
