"""Comma- and tab-separated values.

No torch, no Qt.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Final

from trainer_core.data.encodings import ReadStats, decode_chunks
from trainer_core.data.readers.base import (
    MAX_ROW_BYTES,
    ReadOptions,
    Row,
    SourceFile,
    bad_format_error,
    decode_rows,
    read_chunks,
)
from trainer_core.data.readers.text import split_lines

_UNCLOSED_QUOTE: Final = "a quotation mark is never closed"
_SEPARATORS: Final = (";", "\t", ",")  # alternatives, e.g. of Excel


def read_csv(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows below a header line. The usual separator (comma, of `tsv` tab), or another one that the header contains."""
    stats.unit = "line"
    records = _iter_records(source, stats)
    _, header = next(records, (0, []))
    if isinstance(header, str):
        raise bad_format_error(source, "line 1", header)
    named = [(index, name.strip()) for index, name in enumerate(header)]
    wanted = [(index, name) for index, name in named if not options.columns or name in options.columns]

    def decode(values: list[str] | str) -> Row | str:
        return values if isinstance(values, str) else {name: values[i] for i, name in wanted if i < len(values)}

    return decode_rows(records, decode, options, stats)


def _iter_records(source: SourceFile, stats: ReadStats) -> Iterator[tuple[int, list[str] | str]]:
    """The line number and the values of each record, or why it is bad."""
    max_length = MAX_ROW_BYTES // 2  # characters; the csv module and Python need 4 bytes each for one
    too_long = f"longer than {max_length >> 20} million characters"
    text = decode_chunks(read_chunks(source, stats), source.encoding, stats)
    lines = split_lines(text, "\n", max_length)
    number = quotes = 0  # of the last line; in the current record
    is_too_long = is_end_reached = False

    def iter_lines() -> Iterator[str]:
        nonlocal number, quotes, is_too_long, is_end_reached
        for line in chain([header], lines):
            number += 1
            if line is not None:
                quotes += line.count('"')
            else:
                is_too_long = True
            yield f"{line or ''}\n"
        is_end_reached = True

    header = next(lines, "")
    fed = iter_lines()
    csv.field_size_limit(max_length)  # the default is 128 KiB
    rows = csv.reader(fed, delimiter=_detect_separator(header or "", "\t" if source.format == "tsv" else ","))
    while True:
        first, quotes, is_too_long = number + 1, 0, False
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field over the limit
            values, is_too_long = [], True
            while quotes % 2 and next(fed, ""):  # skip the rest of the quoted field
                pass
        if is_end_reached:  # the record requested another line
            yield first, _UNCLOSED_QUOTE
        elif is_too_long:
            yield first, too_long
        elif values:
            yield first, values


def _detect_separator(header: str, usual: str) -> str:
    return usual if usual in header else next((other for other in _SEPARATORS if other in header), usual)
