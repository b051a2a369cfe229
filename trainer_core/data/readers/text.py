"""Plain text, read in pieces.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import AnyStr

from trainer_core.data.encodings import ReadStats, decode_chunks
from trainer_core.data.readers.base import TEXT, ReadOptions, Row, SourceFile, decode_rows, read_chunks


def read_text(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Pieces of about `piece_chars` characters, cut at line ends if possible."""
    stats.unit = "piece"
    pieces = enumerate(_iter_pieces(source, options.piece_chars, stats), 1)
    return decode_rows(pieces, lambda piece: {TEXT: piece}, options, stats)


def _iter_pieces(source: SourceFile, size: int, stats: ReadStats) -> Iterator[str]:
    rest = ""
    for chunk in decode_chunks(read_chunks(source, stats), source.encoding, stats):
        rest += chunk
        start = 0
        while len(rest) - start >= size and (end := _find_cut(rest, start, size)):
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _find_cut(text: str, start: int, size: int) -> int:
    """The end of the piece that begins at `start`; 0 if more text is needed."""
    end = text.rfind("\n", start + size // 2, start + size) + 1
    end = end or text.find("\n", start + size, start + 4 * size) + 1
    if not end and len(text) - start >= 4 * size:  # one very long line
        return start + size
    return end


def split_lines(chunks: Iterator[AnyStr], separator: AnyStr, max_length: int) -> Iterator[AnyStr | None]:
    """Lines without their ends; None for one longer than `max_length`, which is never held in memory.

    Unlike `str.splitlines`, does not split at U+2028.
    """
    parts: list[AnyStr] = []
    length = 0
    for chunk in chunks:
        lines = chunk.split(separator)
        length += len(lines[0])
        if length <= max_length:
            parts.append(lines[0])
        else:
            parts.clear()
        if len(lines) > 1:
            yield separator[:0].join(parts) if length <= max_length else None
            yield from lines[1:-1]
            parts, length = [lines[-1]], len(lines[-1])
    if length:
        yield separator[:0].join(parts) if length <= max_length else None
