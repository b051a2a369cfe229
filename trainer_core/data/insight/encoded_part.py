"""Encoding the parts of the data that a preview has read, and what follows from them for all of it.

No torch, no Qt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from trainer_core.data.columns import Document
from trainer_core.data.encode import Files, batches
from trainer_core.data.insight.part import Part
from trainer_core.report import Reporter

_ENCODED_S: Final = 9.0  # from the beginning to the last batch that is encoded
_BATCH: Final = 512 * 1024  # characters encoded at once


class Scale(NamedTuple):
    """How many times as many rows, and characters, there are in all as were read."""

    rows: float = 1.0
    text: float = 1.0


class EncodedPart(NamedTuple):
    """What was encoded of a part."""

    rows: int
    characters: int


class Progress:
    """Reports how much is encoded; the first half of the work was reading."""

    def __init__(self, parts: Iterable[Part], reporter: Reporter, began: float) -> None:
        self._reporter, self._began, self._done = reporter, began, 0
        self._bytes, self._characters = 0, 0
        for part in parts:
            self._bytes += part.bytes
            self._characters += sum(one.characters for one in part.documents)

    def add(self, characters: int) -> None:
        self._done += characters
        done = self._bytes * (1 + self._done / max(1, self._characters))
        self._reporter.progress("preparing", done, 2 * self._bytes, "bytes")
        self._reporter.poll()

    @property
    def ended(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() - self._began > _ENCODED_S


def encode_part(files: Files, documents: Sequence[Document], progress: Progress) -> EncodedPart:
    rows, characters, unit = 0, 0, -1
    for batch in batches(documents, _BATCH):
        files.add(batch)
        rows += len({one.unit for one in batch} - {unit})
        some, unit = sum(one.characters for one in batch), batch[-1].unit
        characters += some
        progress.add(some)
        if progress.ended:
            break
    return EncodedPart(rows, characters)


def is_complete(part: Part, done: EncodedPart) -> bool:
    return part.complete and done.characters == sum(one.characters for one in part.documents)


def scale_of(part: Part, done: EncodedPart) -> Scale:
    if is_complete(part, done):
        return Scale()
    return Scale(part.rows_in_all / max(1, done.rows), part.characters_in_all / max(1, done.characters))


def counts_of(parts: Iterable[Part], done: Iterable[EncodedPart], refused: int) -> dict[str, Any]:
    counts = [part.counts for part in parts]
    rows, characters = (sum(figures) for figures in zip(*done, strict=True))
    return {
        "rows": rows,
        "characters": characters,
        "bad": refused + sum(one.bad for one in counts),
        "first_bad": next((one.first_bad for one in counts if one.first_bad), {}),
        "empty": sum(one.empty for one in counts),
        "undecodable": sum(one.undecodable for one in counts),
    }
