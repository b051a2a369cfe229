"""Comma- and tab-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Final

from trainer_core.data.readers.base import MAX_ROW_BYTES, FileInput, Row, iter_lines

_UNCLOSED_QUOTE: Final = "a quotation mark is never closed"
_SEPARATORS: Final = (";", "\t", ",")  # alternatives, e.g. of Excel


def read_csv(file: FileInput) -> Iterator[tuple[str, Row | str]]:
    """Rows below a header line. The usual separator (comma, of `tsv` tab), or another one that the header contains."""
    max_length = MAX_ROW_BYTES // 2  # characters; the csv module and Python need 4 bytes each for one
    too_long = f"longer than {max_length >> 20} million characters"
    is_end_reached = False
    csv.field_size_limit(max_length)  # the default is 128 KiB
    with file.open_text() as text:
        lines = iter_lines(text, "\n", max_length)
        header = next(lines, "")

        def feed() -> Iterator[str]:
            nonlocal is_end_reached
            for line in chain([header], lines):
                yield "x" * (max_length + 1) if line is None else line  # raises `csv.Error`
            is_end_reached = True

        usual = "\t" if file.source.format == "tsv" else ","
        separators = (one for one in (usual, *_SEPARATORS) if one in (header or ""))
        rows = csv.reader(feed(), delimiter=next(separators, usual))
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
                row = _UNCLOSED_QUOTE if is_end_reached else dict(zip(names or (), values, strict=False))
            if names is None:
                if isinstance(row, str):
                    raise file.bad_format_error(position, row)
                names = [name.strip() for name in values]
            elif row:
                yield position, row
