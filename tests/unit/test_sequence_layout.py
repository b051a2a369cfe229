"""Sequences of conversations: each usable conversation once, none too long, and little padding with packing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.token_caches import add_document
from trainer_core.config import Config
from trainer_core.data.sequences import SequenceLayout, build_sequences, fit_conversations, pack
from trainer_core.data.token_files import Split, TokenFileWriter
from trainer_core.progress import NullReporter, StopRequested

Spans = list[tuple[int, int]]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int]:
    """Document lengths from 1 to a capacity, and the capacity."""
    capacity = draw(st.integers(1, 60))
    return draw(st.lists(st.integers(1, capacity), max_size=120)), capacity


def reference_best_fit(sizes: list[int], capacity: int) -> int:
    """Return the number of bins of best-fit decreasing."""
    free: list[int] = []  # per bin
    for size in sorted(sizes, reverse=True):
        fitting = [index for index, space in enumerate(free) if space >= size]
        if not fitting:
            free.append(capacity - size)
        else:
            free[min(fitting, key=free.__getitem__)] -= size
    return len(free)


@given(documents())
@settings(max_examples=200, deadline=None)
def test_packing_uses_each_document_once_and_never_exceeds_the_capacity(case: tuple[list[int], int]) -> None:
    sizes, capacity = np.array(case[0], dtype=np.int64), case[1]
    members, offsets = pack(sizes, capacity, key=7)
    assert sorted(members.tolist()) == list(range(len(sizes)))
    assert offsets[0] == 0
    assert offsets[-1] == len(sizes)
    filled = [int(sizes[members[start:stop]].sum()) for start, stop in pairwise(offsets)]
    assert all(0 < positions <= capacity for positions in filled)


@given(documents())
@settings(max_examples=200, deadline=None)
def test_packing_is_best_fit_decreasing(case: tuple[list[int], int]) -> None:
    sizes, capacity = case
    assert len(pack(np.array(sizes, np.int64), capacity, key=7)[1]) - 1 == reference_best_fit(sizes, capacity)


def test_typical_chat_lengths_leave_almost_no_padding() -> None:
    sizes = np.random.default_rng(0).lognormal(5.3, 0.9, 50_000).astype(np.int64).clip(1, 1024)
    assert sizes.sum() / ((len(pack(sizes, 1024, key=0)[1]) - 1) * 1024) > 0.995


def test_packing_depends_only_on_lengths_and_key() -> None:
    sizes = np.array([5, 3, 3, 2, 2, 2, 1], dtype=np.int64)
    members, offsets = pack(sizes, 6, key=1)
    assert [members[start:stop].tolist() for start, stop in pairwise(offsets)] == [[0, 6], [4, 5, 3], [2, 1]]
    many = np.full(1000, 3, dtype=np.int64)
    assert not np.array_equal(pack(many, 6, key=1)[0], pack(many, 6, key=2)[0])


def test_packing_mixes_documents_and_sequences_of_all_lengths() -> None:
    sizes = np.tile(np.array([90, 40, 10], dtype=np.int64), 20_000)
    members, offsets = pack(sizes, 100, key=0)
    partners = members[offsets[:-1][np.diff(offsets) == 2][:, None] + np.arange(2)]
    assert abs(np.corrcoef(partners.T)[0, 1]) < 0.05
    longest = np.maximum.reduceat(sizes[members], offsets[:-1])
    assert longest[: len(longest) // 10].mean() == pytest.approx(longest.mean(), rel=0.02)


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_the_fill_ratio_without_packing_matches_random_batches(batch_size: int) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.lognormal(4.5, 0.8, 64 * 300).astype(np.int64).clip(1, 500)
    batches = rng.permutation(sizes).reshape(-1, batch_size)
    widths = np.minimum(-(-batches.max(axis=1) // 8) * 8, 500)
    fill_ratio = sizes.sum() / (widths.sum() * batch_size)
    layout = SequenceLayout(*[np.arange(0, dtype=np.uint32)] * 2, np.bincount(sizes, minlength=501), 0, 0)
    assert layout.unpacked_fill_ratio(batch_size) == pytest.approx(fill_ratio, rel=0.02)


# --- usable conversations ----------------------------------------------------------------------------


@st.composite
def conversation(draw: st.DrawFn) -> tuple[int, Spans]:
    """Number of tokens, and trained spans: some empty, some at the first token, possibly none."""
    edges = sorted(draw(st.lists(st.integers(0, 14), max_size=6)))
    spans = [(edges[i], edges[i + 1]) for i in range(0, len(edges) - 1, 2)]
    return draw(st.integers(max([1, *edges]), 16)), spans


def write_split(folder: Path, chats: list[tuple[int, Spans]], split: str = "train") -> Split:
    writer = TokenFileWriter(folder / split, 300)
    for length, spans in chats:
        add_document(writer, range(length), spans)
    writer.finish()
    return Split(folder / split, 300)


@given(chats=st.lists(conversation(), min_size=1, max_size=12), limit=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_conversations_without_trained_tokens_after_truncation_are_unusable(
    tmp_path_factory: pytest.TempPathFactory, chats: list[tuple[int, Spans]], limit: int
) -> None:
    split = write_split(tmp_path_factory.mktemp("cache"), chats)
    fit = fit_conversations(split, 0, len(chats), Config(max_seq_len=limit))
    for (length, spans), positions, usable, truncated in zip(
        chats, *map(list, (fit.positions, fit.usable, fit.truncated)), strict=True
    ):
        trained = [index for start, stop in spans for index in range(start, stop) if 1 <= index <= limit]
        assert usable == bool(trained)
        assert positions == min(length - 1, limit)
        assert truncated == (usable and length - 1 > limit)
    split.close()


@given(
    pairs=st.lists(st.tuples(conversation(), conversation()), min_size=1, max_size=12),
    limit=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_a_preference_fits_if_each_of_its_conversations_does(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[tuple[int, Spans], ...]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    writer = TokenFileWriter(folder / "train", 300)
    for (length, spans), (other_length, other_spans) in pairs:
        shifted = [(length + start, length + stop) for start, stop in other_spans if start < stop]
        own = [span for span in spans if span[0] < span[1]]
        add_document(writer, range(length + other_length), [*own, (length, length), *shifted])
    writer.finish()
    split, sides = Split(folder / "train", 300), write_split(folder, [side for pair in pairs for side in pair], "sides")
    fit, alone = (
        fit_conversations(split, 0, len(pairs), Config(max_seq_len=limit), has_sides=True),
        fit_conversations(sides, 0, 2 * len(pairs), Config(max_seq_len=limit)),
    )
    assert fit.positions.tolist() == alone.positions.reshape(-1, 2).sum(1).tolist()
    assert fit.usable.tolist() == alone.usable.reshape(-1, 2).all(1).tolist()
    cut = [sum(max(length - 1 - limit, 0) for length, _ in pair) for pair in pairs]
    assert fit.cut.tolist() == [tokens * usable for tokens, usable in zip(cut, fit.usable.tolist(), strict=True)]
    split.close()
    sides.close()


# --- sequences of a split -------------------------------------------------------------------------


CHATS: list[tuple[int, Spans]] = [(3 + 7 * n % 40, [(2, 3 + 7 * n % 40)]) for n in range(300)]
UNUSABLE = (60, [(50, 60)])


def config(packing: bool) -> Config:
    return Config(max_seq_len=32, packing=packing)


@pytest.mark.parametrize("packing", [False, True])
def test_sequences_contain_every_usable_conversation_once(tmp_path: Path, packing: bool) -> None:
    write_split(tmp_path, [*CHATS, UNUSABLE])
    write_split(tmp_path, [UNUSABLE], "validation")
    layouts = build_sequences(tmp_path, 300, config(packing), NullReporter(), block_size=100)
    train, validation = layouts["train"], layouts["validation"]
    sequences = [train.documents(index) for index in range(train.samples)]
    assert sorted(number for numbers in sequences for number in numbers) == list(range(300))
    assert all(sum(min(CHATS[number][0] - 1, 32) for number in numbers) <= 32 for numbers in sequences)
    assert (sum(train.lengths), train.dropped) == (300, 1)
    assert train.truncated == sum(length > 33 for length, _ in CHATS)
    assert train.fill_ratio == pytest.approx(sum(min(n - 1, 32) for n, _ in CHATS) / 32 / len(sequences))
    assert (validation.samples, validation.dropped) == (0, 1)
    if packing:
        assert train.fill_ratio > train.unpacked_fill_ratio(batch_size=8)
    else:
        assert sequences == [[number] for number in range(300)]


def test_a_stop_interrupts_the_assignment(tmp_path: Path) -> None:
    class StoppingReporter(NullReporter):
        def poll(self) -> None:
            raise StopRequested

    write_split(tmp_path, CHATS)
    write_split(tmp_path, [], "validation")
    with pytest.raises(StopRequested):
        build_sequences(tmp_path, 300, config(True), StoppingReporter())
