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
_FAR: Final = 8  # lines of usual length: who has to go further to the end of one is in a very long one
_LONGEST_LINE: Final = 1024 * 1024
_FORMATS: Final = ("text", "jsonl")
# No character but the line feed has its byte.
_ENCODINGS: Final = ("utf-8", "utf-8-sig", "gb18030", "cp950", "big5hkscs", "cp1252")


@dataclass(frozen=True, slots=True)
class Slices:
    """A file made of slices of another."""

    source: Source  # the new file; the original one where it can hardly be cut between lines
    original: Source
    lines: tuple[int, ...]  # the lines of the new file at which slices begin, from 0
    offsets: tuple[int, ...]  # the bytes of the original at which they begin
    share: float  # of the places that were tried, those that are not within one very long row

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
    """Write about `size` bytes from all over a file to `path`. None for what is not cut."""
    each = size // _SLICES
    known = source.format in _FORMATS and source.encoding in _ENCODINGS and not source.compression
    if not known or each < _LEAST or source.bytes <= 2 * size:
        return None
    lines, offsets, line, end, hits = [], [], 0, 0, 0
    with source.path.open("rb") as file, path.open("wb") as new:
        for number in range(_SLICES):
            place = number * (source.bytes - each) // (_SLICES - 1)
            slice_ = _slice(file, place, each)
            if slice_ is None or not slice_[1]:
                continue
            offset, data = slice_
            hits += offset - place <= max(_LEAST, _FAR * len(data) / max(1, data.count(b"\n")))
            if offset < end:
                continue
            end = offset + len(data)
            lines.append(line)
            offsets.append(offset)
            line += data.count(b"\n")
            new.write(data)
    share = 1.0 if source.format == "text" else hits / _SLICES
    if offsets[:1] != [0] or len(lines) <= _SLICES // 2:
        return None if share == 1.0 else Slices(source, source, (0,), (0,), share)
    made = replace(source, path=path, bytes=path.stat().st_size)
    return Slices(made, source, tuple(lines), tuple(offsets), share)


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
