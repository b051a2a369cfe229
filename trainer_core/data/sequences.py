"""What the training sequences of a split hold: windows of plain text, or conversations, alone or packed.

Window i of plain text is found by arithmetic. For conversations it depends on their lengths which can be
used and which share a sequence; that is worked out once (`arrange.py`) and kept beside the tokens:

    CACHE/FINGERPRINT/sequences-LENGTH-alone-VERSION/    or sequences-LENGTH-packed-VERSION
        meta.json             counts, for each split
        train/members.bin     uint32: numbers of documents, sequence after sequence; empty where every
                              document has a sequence of its own
        train/offsets.bin     int64, packed only: where each sequence begins in members, at last their end
        train/lengths.bin     int64: how many documents take 0, 1, … LENGTH positions
        validation/           the same

A document of n tokens takes n - 1 positions, for its last token is only predicted. It is cut at its end
where it is longer than a sequence. One of which nothing that is trained on would be left is not used.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.packing import IntArray
from trainer_core.data.token_files import Split

VERSION: Final = 1  # raise it when the files or their content change
WIDTH_MULTIPLE: Final = 8  # padded widths are multiples of it: tensor cores like them, and fewer shapes occur
_NO_TOKEN: Final = np.iinfo(np.int32).max


def count_text_sequences(tokens: int, max_seq_len: int, split: str) -> int:
    """Sequences of plain text in a split: whole ones, and for validation a shorter last one."""
    whole, rest = divmod(max(0, tokens - 1), max_seq_len)
    return whole + (split == "validation" and rest > 0)


# --- how conversations fit ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceFit:
    """How some conversations fit into `max_seq_len`; one entry a conversation."""

    positions: IntArray  # that it takes, once cut
    usable: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]


def fit_conversations(split: Split, first: int, last: int, max_seq_len: int) -> SequenceFit:
    """How the conversations `first` to `last` - 1 of a split fit."""
    lengths = np.diff(split.offsets[first : last + 1])
    begins = split.span_offsets[first : last + 1]
    trained = _first_loss_tokens(split.spans[begins[0] : begins[-1]], begins - begins[0])
    return fit_lengths(lengths, trained, max_seq_len)


def fit_lengths(lengths: npt.NDArray[Any], first_loss_tokens: npt.NDArray[Any], max_seq_len: int) -> SequenceFit:
    """How conversations fit that have so many tokens, of which the first that is trained on is at this index."""
    positions = np.minimum(lengths - 1, max_seq_len).astype(np.int64)
    usable = first_loss_tokens <= positions
    return SequenceFit(positions, usable, usable & (lengths - 1 > max_seq_len))


def first_loss_token(spans: Sequence[tuple[int, int]]) -> int:
    """The index of the first token of a conversation that is trained on. Its very first one never is."""
    return int(_first_loss_tokens(np.array(spans, np.int32).reshape(-1, 2), np.array([0, len(spans)]))[0])


def _first_loss_tokens(spans: npt.NDArray[np.int32], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The same for many: those of conversation i are spans[begins[i]:begins[i + 1]]."""
    starts = np.maximum(spans[:, 0], 1)  # nothing stands before a first token that could predict it
    starts[starts >= spans[:, 1]] = _NO_TOKEN
    found = np.full(len(begins) - 1, _NO_TOKEN, dtype=np.int32)
    some = begins[1:] > begins[:-1]
    if some.any():
        found[some] = np.minimum.reduceat(starts, begins[:-1][some])
    return found


# --- reading them ------------------------------------------------------------------------------------


def sequences_folder(cache_folder: Path, max_seq_len: int, packed: bool) -> Path:
    """Where the sequences of a cache are kept."""
    return cache_folder / f"sequences-{max_seq_len}-{'packed' if packed else 'alone'}-{VERSION}"


class SequenceIndex:
    """Which conversations stand in which sequence of a split. Pickles as its folder, as `Split` does."""

    def __init__(self, folder: Path, packed: bool) -> None:
        self._folder, self._packed = folder, packed
        self._members: npt.NDArray[np.uint32] | None = None
        self._offsets: npt.NDArray[np.int64] | None = None

    def __getstate__(self) -> tuple[Path, bool]:
        return self._folder, self._packed

    def __setstate__(self, state: tuple[Path, bool]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def documents(self, index: int) -> npt.NDArray[np.uint32] | list[int]:
        """The numbers of the documents in sequence `index`."""
        if self._members is None or self._offsets is None:
            self._members = _open_memmap(self._folder / "members.bin", "<u4")
            self._offsets = _open_memmap(self._folder / "offsets.bin", "<i8")
        if self._packed:
            start, stop = self._offsets[index : index + 2].tolist()
            return self._members[start:stop]
        return [int(self._members[index]) if len(self._members) else index]

    def close(self) -> None:
        """Release the memory maps. Reading opens them anew."""
        self._members = self._offsets = None


def _open_memmap(path: Path, kind: str) -> npt.NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))
