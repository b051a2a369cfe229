"""Packing: every usable conversation exactly once, none over the edge, and hardly any padding."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_cache import add_document
from trainer_core.config import Config
from trainer_core.data import sequence_layout as arranging
from trainer_core.data.packing import best_fit, expected_unpacked_fill, pack
from trainer_core.data.sequence_layout import build_sequences, unpacked_fill_ratio
from trainer_core.data.sequences import SequenceIndex, first_loss_token, fit_conversations, sequences_folder
from trainer_core.data.token_files import Split, TokenFileWriter
from trainer_core.progress import NullReporter, StopRequested

ROOT = Path(arranging.__file__).resolve().parents[2]
Spans = list[tuple[int, int]]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int]:
    """Sizes of 1 to capacity, and the capacity."""
    capacity = draw(st.integers(1, 60))
    return draw(st.lists(st.integers(1, capacity), max_size=120)), capacity


def one_by_one(sizes: list[int], capacity: int, fullest: bool) -> int:
    """Packs that best-fit (or first-fit) decreasing needs, written as it is usually described."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [at for at, room in enumerate(rooms) if room >= size]
        if not fitting:
            rooms.append(capacity - size)
        else:
            rooms[min(fitting, key=rooms.__getitem__) if fullest else fitting[0]] -= size
    return len(rooms)


@given(documents())
@settings(max_examples=200, deadline=None)
def test_every_document_stands_in_one_pack_and_no_pack_overflows(given: tuple[list[int], int]) -> None:
    sizes, capacity = np.array(given[0], dtype=np.int64), given[1]
    members, offsets = pack(sizes, capacity, key=7)
    assert sorted(members.tolist()) == list(range(len(sizes)))
    assert offsets[0] == 0
    assert offsets[-1] == len(sizes)
    filled = [int(sizes[members[start:stop]].sum()) for start, stop in pairwise(offsets)]
    assert all(0 < positions <= capacity for positions in filled)


@given(documents())
@settings(max_examples=200, deadline=None)
def test_packs_are_as_few_as_packing_one_by_one_makes(given: tuple[list[int], int]) -> None:
    sizes, capacity = given
    packs = best_fit(np.bincount(sizes, minlength=capacity + 1), capacity).total_packs
    assert packs == one_by_one(sizes, capacity, fullest=True)
    assert packs <= one_by_one(sizes, capacity, fullest=False) * 1.1 + 1
    assert packs >= sum(sizes) / capacity


def test_lengths_as_they_are_in_chat_data_leave_almost_no_padding() -> None:
    sizes = np.random.default_rng(0).lognormal(5.3, 0.9, 50_000).astype(np.int64).clip(1, 1024)
    assert sizes.sum() / (best_fit(np.bincount(sizes), 1024).total_packs * 1024) > 0.995


def test_packs_are_the_same_on_every_machine_and_others_with_another_key() -> None:
    sizes = np.array([5, 3, 3, 2, 2, 2, 1], dtype=np.int64)
    members, offsets = pack(sizes, 6, key=1)
    assert [members[start:stop].tolist() for start, stop in pairwise(offsets)] == FIXED
    many = np.full(1000, 3, dtype=np.int64)
    assert not np.array_equal(pack(many, 6, key=1)[0], pack(many, 6, key=2)[0])


FIXED = [[0, 6], [4, 5, 3], [2, 1]]


def test_documents_of_one_length_are_mixed_and_so_are_long_and_short_packs() -> None:
    sizes = np.tile(np.array([90, 40, 10], dtype=np.int64), 20_000)
    members, offsets = pack(sizes, 100, key=0)
    partners = members[offsets[:-1][np.diff(offsets) == 2][:, None] + np.arange(2)]
    assert abs(np.corrcoef(partners.T)[0, 1]) < 0.05
    longest = np.maximum.reduceat(sizes[members], offsets[:-1])
    assert longest[: len(longest) // 10].mean() == pytest.approx(longest.mean(), rel=0.02)


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_the_padding_of_batches_without_packing_is_told_as_it_is(batch_size: int) -> None:
    random = np.random.default_rng(1)
    sizes = random.lognormal(4.5, 0.8, 64 * 300).astype(np.int64).clip(1, 500)
    batches = random.permutation(sizes).reshape(-1, batch_size)
    widths = np.minimum(-(-batches.max(axis=1) // 8) * 8, 500)
    seen = sizes.sum() / (widths.sum() * batch_size)
    assert expected_unpacked_fill(np.bincount(sizes, minlength=501), batch_size, 8) == pytest.approx(seen, rel=0.02)


# --- which conversations can be used ---------------------------------------------------------------


@st.composite
def conversation(draw: st.DrawFn) -> tuple[int, Spans]:
    """Its number of tokens, and the spans trained on: some empty, some at the very beginning, perhaps none."""
    edges = sorted(draw(st.lists(st.integers(0, 14), max_size=6)))
    spans = [(edges[at], edges[at + 1]) for at in range(0, len(edges) - 1, 2)]
    return draw(st.integers(max([1, *edges]), 16)), spans


def written(folder: Path, chats: list[tuple[int, Spans]], split: str = "train") -> Split:
    writer = TokenFileWriter(folder / split, 300)
    for length, spans in chats:
        add_document(writer, range(length), spans)
    writer.finish()
    return Split(folder / split, 300)


@given(chats=st.lists(conversation(), min_size=1, max_size=12), limit=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_conversation_is_used_where_something_to_learn_is_left_of_it(
    tmp_path_factory: pytest.TempPathFactory, chats: list[tuple[int, Spans]], limit: int
) -> None:
    split = written(tmp_path_factory.mktemp("cache"), chats)
    found = fit_conversations(split, 0, len(chats), limit)
    for (length, spans), positions, usable, cut in zip(
        chats, *map(list, (found.positions, found.usable, found.truncated)), strict=True
    ):
        learned = [at for start, stop in spans for at in range(start, stop) if 1 <= at <= limit]
        assert usable == bool(learned)
        assert positions == min(length - 1, limit)
        assert cut == (usable and length - 1 > limit)
        if learned:
            assert first_loss_token(spans) == learned[0]
    split.close()


# --- kept beside the tokens ------------------------------------------------------------------------


CHATS: list[tuple[int, Spans]] = [(3 + 7 * n % 40, [(2, 3 + 7 * n % 40)]) for n in range(300)]
DROPPED = (60, [(50, 60)])


def config(packing: bool) -> Config:
    return Config(max_seq_len=32, packing=packing)


@pytest.mark.parametrize("packing", [False, True])
def test_sequences_hold_every_usable_conversation_once(tmp_path: Path, packing: bool) -> None:
    written(tmp_path, [*CHATS, DROPPED])
    written(tmp_path, [DROPPED], "validation")
    found = build_sequences(tmp_path, 300, config(packing), NullReporter(), block_size=100)
    sequences = SequenceIndex(sequences_folder(tmp_path, 32, packing) / "train", packing)
    held = [list(map(int, sequences.documents(index))) for index in range(found["train"].samples)]
    assert sorted(number for numbers in held for number in numbers) == list(range(300))
    assert all(sum(min(CHATS[number][0] - 1, 32) for number in numbers) <= 32 for numbers in held)
    assert (found["train"].used, found["train"].dropped) == (300, 1)
    assert found["train"].truncated == sum(length > 33 for length, _ in CHATS)
    assert found["train"].fill_ratio(32) == pytest.approx(sum(min(n - 1, 32) for n, _ in CHATS) / 32 / len(held))
    assert (found["validation"].samples, found["validation"].dropped) == (0, 1)
    assert found["train"].fill_ratio(32) > unpacked_fill_ratio(tmp_path, config(True)) if packing else len(held) == 300
    sequences.close()


def test_what_was_arranged_is_used_again_and_each_length_has_its_own(tmp_path: Path) -> None:
    written(tmp_path, CHATS)
    written(tmp_path, [], "validation")
    first = build_sequences(tmp_path, 300, config(True), NullReporter())
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert build_sequences(tmp_path, 300, config(True), NullReporter()) == first
    build_sequences(tmp_path, 300, Config(max_seq_len=16, packing=True), NullReporter())
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_one_that_was_stopped_or_damaged_is_made_anew(tmp_path: Path) -> None:
    class Impatient(NullReporter):
        def poll(self) -> None:
            raise StopRequested

    written(tmp_path, CHATS)
    written(tmp_path, [], "validation")
    with pytest.raises(StopRequested):
        build_sequences(tmp_path, 300, config(True), Impatient())
    assert not sequences_folder(tmp_path, 32, True).exists()
    whole = build_sequences(tmp_path, 300, config(True), NullReporter())
    members = sequences_folder(tmp_path, 32, True) / "train" / "members.bin"
    content = members.read_bytes()
    members.write_bytes(content[:-4])
    assert build_sequences(tmp_path, 300, config(True), NullReporter()) == whole
    assert members.read_bytes() == content


def test_two_processes_may_arrange_one_cache(tmp_path: Path) -> None:
    written(tmp_path, CHATS * 20)
    written(tmp_path, [], "validation")
    program = (
        "import sys, pathlib; from trainer_core.config import Config; from trainer_core.progress import NullReporter;"
        "from trainer_core.data.sequence_layout import build_sequences;"
        "print(build_sequences(pathlib.Path(sys.argv[1]), 300, Config(max_seq_len=32, packing=True), NullReporter()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=60)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1
    assert sorted(path.name for path in tmp_path.glob("sequences-*") if path.is_dir()) == ["sequences-32-packed-1"]
