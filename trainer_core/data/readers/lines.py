"""JSON Lines and separated values.

No torch, no Qt.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import AnyStr, Final

from trainer_core.data.encodings import ReadStats, decode_chunks
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import MAX_ROW_BYTES, ReadOptions, Row, SourceFile, bad_format_error, decode_rows
from trainer_core.data.readers.json_rows import RowDecoder, read_utf8

_UNCLOSED_QUOTE: Final = "a quotation mark is never closed"
_SEPARATORS: Final = (";", "\t", ",")  # alternatives, e.g. of Excel


def read_jsonl(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of one JSON object per line. Other lines are bad rows."""
    stats.unit = "line"
    decoder = RowDecoder(options.columns, stats)
    numbered = enumerate(split_lines(read_utf8(source, stats), b"\n", MAX_ROW_BYTES), 1)
    filled = ((number, line) for number, line in numbered if line is None or not _is_blank(line))
    return decode_rows(filled, decoder.decode_row, options, stats)


def _is_blank(line: bytes) -> bool:
    """Whether a line has only white space (also Chinese) and byte order marks."""
    filled = line.strip()
    return not filled or (filled[0] >= 0x80 and not filled.decode("utf-8", "replace").strip(" \ufeff\u3000\xa0"))


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


def read_csv(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows below a header line. The separator is a comma, or another one that the header contains."""
    return _read_separated(source, options, stats, ",")


def read_tsv(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows below a header line. The separator is a tab, or another one that the header contains."""
    return _read_separated(source, options, stats, "\t")


def _read_separated(source: SourceFile, options: ReadOptions, stats: ReadStats, separator: str) -> Iterator[Row]:
    stats.unit = "line"
    lines = _CsvLines(source, stats)
    separator = lines.detect_separator(separator)
    records = _iter_records(lines, separator)
    _, header = next(records, (0, []))
    if isinstance(header, str):
        raise bad_format_error(source, "line 1", header)
    wanted = [(place, name.strip()) for place, name in enumerate(header)]
    if options.columns:
        wanted = [(place, name) for place, name in wanted if name in options.columns]

    def decode(values: list[str] | str) -> Row | str:
        return values if isinstance(values, str) else {name: values[i] for i, name in wanted if i < len(values)}

    return decode_rows(records, decode, options, stats)


def _iter_records(lines: _CsvLines, separator: str) -> Iterator[tuple[int, list[str] | str]]:
    """The line number and the values of each record, or why it is bad."""
    csv.field_size_limit(lines.max_length)  # the default is 128 KiB
    rows = csv.reader(lines, delimiter=separator)
    while True:
        number, lines.quotes = lines.number + 1, 0
        try:
            values = next(rows)
        except StopIteration:
            return
        except _LineTooLongError:
            yield lines.number, lines.too_long_reason
        except csv.Error:  # a field over the limit
            lines.skip_quoted_field()
            yield number, _UNCLOSED_QUOTE if lines.at_eof else lines.too_long_reason
        else:
            if lines.at_eof:
                yield number, _UNCLOSED_QUOTE
            elif values:
                yield number, values


class _LineTooLongError(Exception):
    """Raised instead of returning a line that is too long."""


class _CsvLines:
    """The lines of a file for `csv.reader`. Unlike a generator, it continues after an exception."""

    def __init__(self, source: SourceFile, stats: ReadStats) -> None:
        self.max_length = MAX_ROW_BYTES // 2  # characters; the csv module and Python need 4 bytes each for one
        self.too_long_reason = f"longer than {self.max_length >> 20} million characters"
        text = decode_chunks(streams.read_chunks(source, stats), source.encoding, stats)
        self._lines: Iterator[str | None] = split_lines(text, "\n", self.max_length)
        self.number = 0  # of the last line
        self.quotes = 0  # in the current record
        self.at_eof = False  # another line was requested: the record is not complete

    def detect_separator(self, usual: str) -> str:
        """The separator of the first line."""
        first = next(self._lines, "")
        self._lines = chain([first], self._lines)
        if first is None or usual in first:
            return usual
        return next((other for other in _SEPARATORS if other in first), usual)

    def skip_quoted_field(self) -> None:
        """Skip the rest of a quoted field after an error."""
        with suppress(StopIteration):
            while self.quotes % 2:
                with suppress(_LineTooLongError):
                    next(self)

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.at_eof = True
            raise
        self.number += 1
        if line is None:
            raise _LineTooLongError
        self.quotes += line.count('"')
        return line + "\n"
