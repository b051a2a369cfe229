"""Pieces from all over a long file of lines, as a file of its own: a file may hold other things at its end.

No torch, no Qt.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from trainer_core.data.formats import Source

_SLICES: Final = 8
_LEAST: Final = 64 * 1024  # bytes of a slice
_LONGEST_LINE: Final = 1024 * 1024
_FORMATS: Final = ("text", "jsonl")
_ENCODINGS: Final = ("utf-8", "utf-8-sig", "gb18030", "cp1252")  # no character but the line feed has its byte


@dataclass(frozen=True, slots=True)
class Slices:
    """A file made of slices of another."""

    source: Source  # the new file
    original: Source
    lines: tuple[int, ...]  # the lines of the new file at which slices begin, from 0
    offsets: tuple[int, ...]  # the bytes of the original at which they begin

    def position(self, position: str) -> str:
        """A place in the new file ("line 17") as one in the original."""
        unit, _, number = position.partition(" ")
        if unit != "line" or not number.isdigit():
            return position
        line = int(number) - 1
        place = bisect_right(self.lines, line) - 1
        if not place:
            return position
        return f"line {line - self.lines[place] + 1} after byte {self.offsets[place]}"


def slice_up(source: Source, size: int, path: Path) -> Slices | None:
    """Write about `size` bytes from all over a file to `path`. None where it cannot be cut between lines."""
    each = size // _SLICES
    known = source.format in _FORMATS and source.encoding in _ENCODINGS and not source.compression
    if not known or each < _LEAST or source.bytes <= 2 * size:
        return None
    lines, offsets, line = [], [], 0
    with source.path.open("rb") as file, path.open("wb") as new:
        for number in range(_SLICES):
            slice_ = _slice(file, number * (source.bytes - each) // (_SLICES - 1), each)
            if slice_ is None:
                return None
            offset, data = slice_
            lines.append(line)
            offsets.append(offset)
            line += data.count(b"\n")
            new.write(data)
    made = replace(source, path=path, bytes=path.stat().st_size)
    return Slices(made, source, tuple(lines), tuple(offsets))


def _slice(file: BinaryIO, offset: int, size: int) -> tuple[int, bytes] | None:
    """Whole lines of about `size` bytes from `offset` on, and where they begin; None: no line ends there."""
    file.seek(max(0, offset - 1))
    if offset:
        begun = file.readline(_LONGEST_LINE)
        if not begun.endswith(b"\n"):
            return None
        offset += len(begun) - 1
    data = file.read(size)
    rest = b"" if data.endswith(b"\n") else file.readline(_LONGEST_LINE)
    whole = not rest or rest.endswith(b"\n") or not file.read(1)
    return (offset, data + rest) if whole else None
