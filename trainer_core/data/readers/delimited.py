"""Comma- and tab-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Final

from trainer_core.data.readers.base import MAX_ROW_BYTES, FileInput, Row, iter_lines

_UNCLOSED_QUOTE: Final = "a quotation mark is never closed, so all lines from there on are lost"
_TOO_MANY_VALUES: Final = "it has more values than columns; a text that contains the separator needs quotation marks"
_SEPARATORS: Final = (";", "\t", ",")  # alternatives, e.g. of Excel


def read_csv(file: FileInput) -> Iterator[tuple[str, Row | str]]:
    """Rows below the header, the first line that is not blank. The usual separator (comma, of `tsv` tab), or another
    one that the header contains.
    """
    max_length = MAX_ROW_BYTES // 2  # characters; the csv module and Python need 4 bytes each for one
    too_long = f"longer than {max_length >> 20} million characters"
    is_end_reached = False
    csv.field_size_limit(max_length)  # the default is 128 KiB
    with file.open_text() as text:
        lines = iter_lines(text, "\n", max_length)
        head = _read_head(lines)

        def feed() -> Iterator[str]:
            nonlocal is_end_reached
            for line in chain(head, lines):
                yield "x" * (max_length + 1) if line is None else line  # raises `csv.Error`
            is_end_reached = True

        usual = "\t" if file.source.format == "tsv" else ","
        header = head[-1] or "" if head else ""
        rows = csv.reader(feed(), delimiter=next((one for one in (usual, *_SEPARATORS) if one in header), usual))
        names: list[str] | None = None
        while True:
            position = f"line {rows.line_num + 1}"
            try:
                values = next(rows)
            except StopIteration:
                return
            except csv.Error:
                row: Row | str = too_long
            else:
                row = _UNCLOSED_QUOTE if is_end_reached else _to_row(names, values)
            if names is not None:
                if row:
                    yield position, row
            elif isinstance(row, str):
                raise file.bad_format_error(position, row)
            elif "".join(values).strip():
                names = [name.strip() for name in values]


def _read_head(lines: Iterator[str | None]) -> list[str | None]:
    """Blank lines, and the one after them."""
    head: list[str | None] = []
    for line in lines:
        head.append(line)
        if line is None or line.strip():
            break
    return head


def _to_row(names: list[str] | None, values: list[str]) -> Row | str:
    """A row, or the reason why it cannot be used. Empty for a blank line, and before the header."""
    if names is not None and any(values[len(names) :]):
        return _TOO_MANY_VALUES
    return dict(zip(names or (), values, strict=False))
