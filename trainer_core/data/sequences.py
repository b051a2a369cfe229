"""Training sequences of a split: windows of plain text, or conversations, one or several (packed) per sequence.

Windows of plain text follow from their number. Which conversations are usable and share a sequence depends on their
lengths: `build_sequences` computes it at each start, 0.4 s for a million conversations, and keeps 8 bytes for each.

A conversation of n tokens takes n - 1 positions, since its last token is only predicted. Those longer than
`max_seq_len` are truncated; those without trained tokens after truncation are dropped. The conversations of a pair are
truncated each and share a sequence of 2 * `max_seq_len` positions. A pair is dropped if truncation leaves one of them
without an answer, or both the same. With rewards, conversations that are too long are dropped: rewards compare with
whole answers.

No torch, no Qt.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer_core.config import Config
from trainer_core.data.order import SHUFFLE_BLOCK_SIZE, permute
from trainer_core.data.token_files import SPLITS, Split
from trainer_core.progress import Reporter

WIDTH_MULTIPLE: Final = 8  # padded widths are multiples of it, for tensor cores and fewer shapes
_BLOCK_DOCUMENTS: Final = 1 << 19  # documents packed together: 50 MB; more would not fill sequences better
_NO_TOKEN: Final = np.iinfo(np.int32).max

IntArray = npt.NDArray[np.int64]


def count_text_sequences(tokens: int, max_seq_len: int, split: str) -> int:
    """Sequences of plain text in a split: whole ones, and for validation a shorter last one."""
    whole, rest = divmod(max(0, tokens - 1), max_seq_len)
    return whole + (split == "validation" and rest > 0)


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """The conversations or pairs of a split in each of its sequences."""

    members: npt.NDArray[np.uint32]  # document numbers, one sequence after another
    offsets: npt.NDArray[np.uint32]  # (sequences + 1,): start of each sequence in `members`, and their number
    lengths: IntArray  # documents that take 0, 1, ... as many positions as a sequence has
    truncated: int  # documents cut at max_seq_len
    dropped: int  # without trained tokens or a difference after truncation; with rewards, those that are too long

    def documents(self, index: int) -> list[int]:
        """Numbers of the documents in sequence `index`."""
        found: list[int] = self.members[self.offsets[index] : self.offsets[index + 1]].tolist()
        return found

    @property
    def samples(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    @property
    def positions(self) -> int:
        """Non-padding positions of all sequences."""
        return int(np.arange(len(self.lengths)) @ self.lengths)

    @property
    def fill_ratio(self) -> float:
        """Share of non-padding positions if every sequence is full, 0..1."""
        return self.positions / max(1, self.samples * (len(self.lengths) - 1))

    def unpacked_fill_ratio(self, batch_size: int) -> float:
        """Expected share of non-padding positions with one conversation per sequence, 0..1.

        Random batches are padded to their longest sequence, rounded up to a multiple of 8. The longest of B
        conversations has at most w positions with a probability of F(w)^B.
        """
        documents, longest_width = int(self.lengths.sum()), len(self.lengths) - 1
        if not documents:
            return 1.0
        widths = np.append(np.arange(0, longest_width, WIDTH_MULTIPLE), longest_width)
        longest = (np.cumsum(self.lengths)[widths] / documents) ** batch_size
        width = float(widths[0] * longest[0] + (widths[1:] * np.diff(longest)).sum())
        return self.positions / documents / max(width, 1.0)


def build_sequences(
    cache_folder: Path, vocab_size: int, config: Config, reporter: Reporter, block_size: int = 0, sides: int = 0
) -> dict[str, SequenceLayout]:
    """Assign the conversations of both splits of a cache to sequences. `sides`: see `ColumnMapping.sides`.

    Processes `block_size` documents at a time, which alone can share sequences; 0: the default. Raises what
    `reporter.poll` raises.
    """
    block_size = block_size or (_BLOCK_DOCUMENTS if config.token_cache else SHUFFLE_BLOCK_SIZE)
    layouts = {}
    for name in SPLITS:
        with closing(Split(cache_folder / name, vocab_size)) as split:
            layouts[name] = _build_split(split, config, reporter, block_size, sides)
    return layouts


def _build_split(split: Split, config: Config, reporter: Reporter, block_size: int, sides: int) -> SequenceLayout:
    documents, capacity = split.documents, config.max_seq_len * max(1, sides)
    lengths = np.zeros(capacity + 1, np.int64)
    all_members, all_offsets = [np.zeros(0, np.uint32)], [np.zeros(1, np.uint32)]
    used = truncated = 0
    for first in range(0, documents, block_size):
        last = min(first + block_size, documents)
        fit = fit_conversations(split, first, last, config, has_sides=sides > 0)
        numbers = np.flatnonzero(fit.usable)
        positions = fit.positions[numbers]
        if config.packing:
            members, offsets = pack(positions, capacity, key=first)
        else:
            members, offsets = np.arange(len(numbers)), np.arange(len(numbers) + 1)
        all_members.append((numbers[members] + first).astype(np.uint32))
        all_offsets.append((offsets[1:] + used).astype(np.uint32))
        used += len(numbers)
        truncated += int(np.count_nonzero(fit.truncated))
        lengths += np.bincount(positions, minlength=capacity + 1)
        reporter.progress("preparing", last, documents, "documents")
        reporter.poll()
    return SequenceLayout(
        np.concatenate(all_members), np.concatenate(all_offsets), lengths, truncated, documents - used
    )


@dataclass(frozen=True, slots=True)
class SequenceFit:
    """How conversations fit into `max_seq_len`; one entry per document."""

    positions: IntArray  # after truncation
    usable: npt.NDArray[np.bool_]
    cut: IntArray  # tokens removed by truncation, of usable ones

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        return self.cut > 0


def fit_conversations(split: Split, first: int, last: int, config: Config, has_sides: bool = False) -> SequenceFit:
    """Fit conversations [first, last) of a split, or with `has_sides` preferences."""
    max_seq_len = config.max_seq_len
    lengths = np.diff(split.offsets[first : last + 1])
    begins = split.span_offsets[first : last + 1]
    spans, begins = split.spans[begins[0] : begins[-1]], begins - begins[0]
    if has_sides:
        lengths, spans, begins = divide_sides(lengths, spans, begins)
    trained = _first_loss_tokens(spans, begins)
    positions = np.clip(lengths - 1, 0, max_seq_len).astype(np.int64)
    usable, cut = trained <= positions, np.maximum(lengths - 1 - max_seq_len, 0)
    if has_sides:
        usable = (usable | (lengths == 0)).reshape(-1, 2).all(1)
        usable &= ~_have_lost_difference(split, first, lengths.reshape(-1, 2), max_seq_len)
        positions, cut = positions.reshape(-1, 2).sum(1), cut.reshape(-1, 2).sum(1)
    if config.uses_rewards:
        usable &= cut == 0
    return SequenceFit(positions, usable, cut * usable)


def divide_sides(
    lengths: IntArray, spans: npt.NDArray[np.int32], begins: IntArray
) -> tuple[IntArray, npt.NDArray[np.int32], IntArray]:
    """The conversations of preferences, two per document (see `preferences`): lengths, spans, and where these begin."""
    middles = np.flatnonzero(spans[:, 0] == spans[:, 1])  # the only empty span of each document
    boundaries = spans[middles, 0]
    begins = np.append(np.column_stack([begins[:-1], middles]).ravel(), begins[-1])
    shifts = np.repeat(np.column_stack([np.zeros_like(boundaries), boundaries]).ravel(), np.diff(begins))
    return np.column_stack([boundaries, lengths - boundaries]).ravel(), spans - shifts[:, None], begins


def _have_lost_difference(split: Split, first: int, lengths: IntArray, max_seq_len: int) -> npt.NDArray[np.bool_]:
    """Which pairs, of `lengths` (n, 2), are twice the same after truncation. None if the split has no tokens."""
    kept = max_seq_len + 1
    lost = np.zeros(len(lengths), np.bool_)
    for number in np.flatnonzero((lengths >= kept).all(1)).tolist() if split.has_tokens else ():
        start = int(split.offsets[first + number])
        other = start + int(lengths[number, 0])
        lost[number] = np.array_equal(split.read(start, start + kept), split.read(other, other + kept))
    return lost


def _first_loss_tokens(spans: npt.NDArray[np.int32], begins: IntArray) -> npt.NDArray[np.int32]:
    """Index of the first trained token of each conversation, at least 1: nothing predicts the very first token.

    The spans of conversation i are spans[begins[i]:begins[i + 1]].
    """
    starts = np.maximum(spans[:, 0], 1)
    starts[starts >= spans[:, 1]] = _NO_TOKEN
    found = np.full(len(begins) - 1, _NO_TOKEN, dtype=np.int32)
    some = begins[1:] > begins[:-1]
    if some.any():
        found[some] = np.minimum.reduceat(starts, begins[:-1][some])
    return found


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
