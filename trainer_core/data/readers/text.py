"""Plain text, read in pieces.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer_core.data.encodings import ReadStats, decode_chunks
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import TEXT, ReadOptions, Row, SourceFile, decode_rows


def read_text(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Pieces of about `piece_chars` characters, cut at line ends if possible."""
    stats.unit = "piece"
    pieces = enumerate(_iter_pieces(source, options.piece_chars, stats), 1)
    return decode_rows(pieces, lambda piece: {TEXT: piece}, options, stats)


def _iter_pieces(source: SourceFile, size: int, stats: ReadStats) -> Iterator[str]:
    rest = ""
    for chunk in decode_chunks(streams.read_chunks(source, stats), source.encoding, stats):
        rest += chunk
        start = 0
        while len(rest) - start >= size:
            end = _find_cut(rest, start, size)
            if not end:
                break
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _find_cut(text: str, start: int, size: int) -> int:
    """The end of the piece that begins at `start`; 0 if more text is needed."""
    end = text.rfind("\n", start + size // 2, start + size) + 1
    if end:
        return end
    end = text.find("\n", start + size, start + 4 * size) + 1
    if end:
        return end
    return start + size if len(text) - start >= 4 * size else 0  # one very long line
