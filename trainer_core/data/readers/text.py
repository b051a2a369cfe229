"""Plain text and Markdown: pieces of one long text.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from trainer_core.data.encodings import Tally, decoded
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import TEXT, Request, Row, Source


def read_text(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """A plain text in pieces of about `request.piece` characters, cut at line ends where there are any."""
    tally.unit = "piece"
    pieces = enumerate(_pieces(source, request.piece, tally), 1)
    for number, piece in islice(pieces, request.skip, None):
        tally.number = number
        tally.read += 1
        yield {TEXT: piece}


def _pieces(source: Source, size: int, tally: Tally) -> Iterator[str]:
    rest = ""
    for chunk in decoded(streams.chunks(source, tally), source.encoding, tally):
        rest += chunk
        start = 0
        while len(rest) - start >= size:
            end = _cut(rest, start, size)
            if not end:
                break
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _cut(text: str, start: int, size: int) -> int:
    """Where a piece that begins at `start` ends; 0: more text is needed to tell."""
    end = text.rfind("\n", start + size // 2, start + size) + 1
    if end:
        return end
    end = text.find("\n", start + size, start + 4 * size) + 1
    if end:
        return end
    return start + size if len(text) - start >= 4 * size else 0  # a line without end
