"""Plain text, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from trainer_core.data.readers.base import TEXT, FileInput, Row


def read_text(file: FileInput) -> Iterator[tuple[str, Row]]:
    """Pieces of about `piece_chars` characters, cut at line ends if possible."""
    size, rest = file.piece_chars, ""
    with file.open_text() as text:
        for number in count(1):
            rest += text.read(4 * size - len(rest))
            if not rest:
                return
            end = len(rest)
            if end >= size:
                is_long = end == 4 * size  # without a line end, cut at `size`
                line_end = rest.rfind("\n", size // 2, size) + 1 or rest.find("\n", size) + 1
                end = line_end or (size if is_long else end)
            yield f"piece {number}", {TEXT: rest[:end]}
            rest = rest[end:]
