"""Rows that are lines: JSON Lines and separated values.

No torch, no Qt.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import AnyStr, Final

from trainer_core.data.encodings import Tally, decoded
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import LONGEST, TOO_LONG, Request, Row, Source, bad_format
from trainer_core.data.readers.json_rows import Rows, utf_8

_OPEN: Final = "a quotation mark is never closed"
_SEPARATORS: Final = (";", "\t", ",")  # tried in turn where a header lacks the usual one (Excel)


def read_jsonl(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """One JSON object a line. Lines that are not are skipped and counted."""
    tally.unit = "line"
    rows = Rows(request.columns, tally)
    numbered = enumerate(split(utf_8(source, tally), b"\n", LONGEST), 1)
    filled = ((number, line) for number, line in numbered if line is None or not _blank(line))
    for number, line in islice(filled, request.skip, None):
        tally.number = number
        tally.read += 1
        row = TOO_LONG if line is None else rows.row(line)
        if isinstance(row, str):
            tally.skip(tally.position, row)
        else:
            yield row


def _blank(line: bytes) -> bool:
    """Whether there is nothing but white space, Chinese white space and byte order marks included."""
    filled = line.strip()
    return not filled or (filled[0] >= 0x80 and not filled.decode("utf-8", "replace").strip(" \ufeff\u3000\xa0"))


def split(chunks: Iterator[AnyStr], end: AnyStr, longest: int) -> Iterator[AnyStr | None]:
    """Lines without their ends. None: a line of more than `longest`, which is passed over and never held.

    Only line feeds end a line: U+2028 within a JSON text does not.
    """
    parts: list[AnyStr] = []
    length = 0
    for chunk in chunks:
        lines = chunk.split(end)
        length += len(lines[0])
        if length <= longest:
            parts.append(lines[0])
        else:
            parts.clear()
        if len(lines) > 1:
            yield end[:0].join(parts) if length <= longest else None
            yield from lines[1:-1]
            parts, length = [lines[-1]], len(lines[-1])
    if length:
        yield end[:0].join(parts) if length <= longest else None


def read_csv(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """Rows below a header line, separated by commas, or by what the header has instead."""
    return _separated(source, request, tally, ",")


def read_tsv(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """Rows below a header line, separated by tabs, or by what the header has instead."""
    return _separated(source, request, tally, "\t")


def _separated(source: Source, request: Request, tally: Tally, separator: str) -> Iterator[Row]:
    tally.unit = "line"
    lines = _Lines(source, tally)
    separator = lines.separator(separator)
    records = _records(lines, separator)
    _, header = next(records, (0, []))
    if isinstance(header, str):
        raise bad_format(source, "line 1", header)
    wanted = [(place, name.strip()) for place, name in enumerate(header)]
    if request.columns:
        wanted = [(place, name) for place, name in wanted if name in request.columns]
    for number, values in islice(records, request.skip, None):
        tally.number = number
        tally.read += 1
        if isinstance(values, str):
            tally.skip(tally.position, values)
        else:
            filled = len(values)
            yield {name: values[place] for place, name in wanted if place < filled}


def _records(lines: _Lines, separator: str) -> Iterator[tuple[int, list[str] | str]]:
    """Each record with the number of its first line; a text in its place says why there is none."""
    csv.field_size_limit(lines.longest)  # the default of 128 KiB refuses long texts
    rows = csv.reader(lines, delimiter=separator)
    while True:
        number, lines.quotes = lines.number + 1, 0
        try:
            values = next(rows)
        except StopIteration:
            return
        except _LineTooLongError:
            yield lines.number, lines.too_long
        except csv.Error:  # a field over the limit; nothing else is refused
            lines.pass_quoted()
            yield number, _OPEN if lines.ended else lines.too_long
        else:
            if lines.ended:
                yield number, _OPEN
            elif values:
                yield number, values


class _LineTooLongError(Exception):
    """In place of a line that is too long."""


class _Lines:
    """The lines of a file, as `csv.reader` takes them: unlike a generator it goes on after an error."""

    def __init__(self, source: Source, tally: Tally) -> None:
        self.longest = LONGEST // 2  # characters; the csv module needs four bytes for each, and Python as many again
        self.too_long = f"longer than {self.longest >> 20} million characters"
        text = decoded(streams.chunks(source, tally), source.encoding, tally)
        self._lines: Iterator[str | None] = split(text, "\n", self.longest)
        self.number = 0  # of the line given last
        self.quotes = 0  # of the record so far
        self.ended = False  # someone has asked for more than there is: a record is not complete

    def separator(self, usual: str) -> str:
        """What the first line is separated by."""
        first = next(self._lines, "")
        self._lines = chain([first], self._lines)
        if first is None or usual in first:
            return usual
        return next((other for other in _SEPARATORS if other in first), usual)

    def pass_quoted(self) -> None:
        """To the end of the quoted field that the record has been left in."""
        with suppress(StopIteration):
            while self.quotes % 2:
                with suppress(_LineTooLongError):
                    next(self)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.ended = True
            raise
        self.number += 1
        if line is None:
            raise _LineTooLongError
        self.quotes += line.count('"')
        return line + "\n"
