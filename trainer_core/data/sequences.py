"""Training sequences of a split: windows of plain text, or conversations, one or several (packed) per sequence.

Windows of plain text follow from their number. Which conversations are usable and share a sequence depends on their
lengths; `sequence_layout.py` computes it once and stores it in the cache:

    CACHE/FINGERPRINT/sequences-LENGTH-unpacked-VERSION/    or sequences-LENGTH-packed-VERSION
        meta.json             counts of each split
        train/members.bin     uint32: document numbers, one sequence after another
        train/offsets.bin     int64, sequences + 1: start of each sequence in members, and their number
        validation/           the same

A document of n tokens takes n - 1 positions, since its last token is only predicted. Documents longer than a sequence
are truncated; those without trained tokens after truncation are dropped.

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.token_files import Split, map_file

VERSION: Final = 2  # raise it when the files or their content change
WIDTH_MULTIPLE: Final = 8  # padded widths are multiples of it, for tensor cores and fewer shapes
MEMBERS_FILE: Final = "members.bin"
OFFSETS_FILE: Final = "offsets.bin"
_NO_TOKEN: Final = np.iinfo(np.int32).max

IntArray = npt.NDArray[np.int64]


def count_text_sequences(tokens: int, max_seq_len: int, split: str) -> int:
    """Sequences of plain text in a split: whole ones, and for validation a shorter last one."""
    whole, rest = divmod(max(0, tokens - 1), max_seq_len)
    return whole + (split == "validation" and rest > 0)


@dataclass(frozen=True, slots=True)
class SequenceFit:
    """How conversations fit into `max_seq_len`; one entry per conversation."""

    positions: IntArray  # after truncation
    usable: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]


def fit_conversations(split: Split, first: int, last: int, max_seq_len: int) -> SequenceFit:
    """Fit conversations [first, last) of a split."""
    lengths = np.diff(split.offsets[first : last + 1])
    begins = split.span_offsets[first : last + 1]
    trained = _first_loss_tokens(split.spans[begins[0] : begins[-1]], begins - begins[0])
    positions = np.minimum(lengths - 1, max_seq_len).astype(np.int64)
    usable = trained <= positions
    return SequenceFit(positions, usable, usable & (lengths - 1 > max_seq_len))


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


def sequences_folder(cache_folder: Path, max_seq_len: int, packed: bool) -> Path:
    """Folder of the sequences of a cache."""
    return cache_folder / f"sequences-{max_seq_len}-{'packed' if packed else 'unpacked'}-{VERSION}"


class SequenceIndex:
    """The conversations in each sequence of a split. Pickles as its folder, like `Split`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: tuple[npt.NDArray[np.uint32], IntArray] | None = None

    def __reduce__(self) -> Any:
        return type(self), (self._folder,)

    def documents(self, index: int) -> list[int]:
        """Numbers of the documents in sequence `index`."""
        if self._maps is None:
            self._maps = map_file(self._folder / MEMBERS_FILE, "<u4"), map_file(self._folder / OFFSETS_FILE, "<i8")
        members, offsets = self._maps
        start, stop = offsets[index : index + 2].tolist()
        found: list[int] = members[start:stop].tolist()
        return found

    def close(self) -> None:
        """Release the memory maps. Reading maps the files again."""
        self._maps = None
