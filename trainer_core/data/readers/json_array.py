"""A JSON file that is one array of objects.

No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from trainer_core.data.encodings import Tally
from trainer_core.data.readers.base import LONGEST, TOO_LONG, Request, Row, Source, bad_format
from trainer_core.data.readers.json_rows import Rows, utf_8

_BETWEEN: Final = b", \t\r\n"  # what stands between elements
_PAST: Final = re.compile(rb"[, \t\r\n]*")
_MARK: Final = re.compile(rb'["{}\[\]]')  # what matters outside strings
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SCALAR_END: Final = re.compile(rb"[, \t\r\n\]}]")
_TRIES, _BRACES = 4, 256  # places where a run of elements is tried to end, of so many that are looked at


def read_json(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """An array of JSON objects. Elements that are not objects are skipped and counted."""
    tally.unit = "element"
    rows = Rows(request.columns, tally)
    elements = enumerate(_elements(source, rows, tally), 1)
    for number, element in islice(elements, request.skip, None):
        tally.number = number
        tally.read += 1
        row = TOO_LONG if element is None else rows.row(element) if isinstance(element, bytes) else element
        if isinstance(row, str):
            tally.skip(tally.position, row)
        else:
            yield row


def _elements(source: Source, rows: Rows, tally: Tally) -> Iterator[Row | bytes | None]:
    """The elements: rows where many could be decoded at once, else bytes. None: one longer than `LONGEST`."""
    opened, number = False, 0
    element: _Element | None = None
    for chunk in filter(None, utf_8(source, tally)):
        place = 0
        if not opened:
            place = len(chunk) - len(chunk.lstrip(b" \t\r\n"))
            if place == len(chunk):
                continue
            if chunk[place : place + 1] != b"[":
                raise bad_format(source, "the beginning", "it should be an array of objects: [{…}, {…}]")
            opened, place = True, place + 1
        if element is not None:
            place = element.go_on(chunk, 0)
            if not element.ended:
                continue
            number += 1
            yield element.data
            element = None
        many, place = _run(chunk, place, rows)
        number += len(many)
        yield from many
        while (place := _end(_PAST, chunk, place)) < len(chunk):
            if chunk[place] == b"]"[0]:
                return
            element = _Element()
            place = element.go_on(chunk, place)
            if element.ended:
                number += 1
                yield element.data
                element = None
    raise bad_format(source, f"element {number + 1}" if opened else "the beginning", "it ends too early")


def _run(chunk: bytes, start: int, rows: Rows) -> tuple[list[Row], int]:
    """As many whole elements as can be decoded at once, and where they end.

    The place between two elements is guessed: what parses as an array up to there cannot end within a
    string or another array.
    """
    stop = len(chunk)
    for _ in range(_TRIES):
        stop = _gap(chunk, start, stop)
        if not stop:
            break
        many = rows.array(b"[" + chunk[start:stop].strip(_BETWEEN) + b"]")
        if many is not None:
            return many, stop
    return [], start


def _gap(chunk: bytes, start: int, stop: int) -> int:
    """The last place before `stop` that looks like one between two objects; 0: there is none."""
    for _ in range(_BRACES):
        stop = chunk.rfind(b"{", start, stop)
        if stop <= start:
            break
        before = chunk[max(start, stop - 64) : stop].rstrip(b" \t\r\n")
        if before.endswith(b",") and before[:-1].rstrip(b" \t\r\n").endswith(b"}"):
            return stop
    return 0


class _Element:
    """One element, gathered over chunks. Its `data` is None when it is longer than `LONGEST`: it is not held."""

    def __init__(self) -> None:
        self.ended = False
        self._parts: list[bytes] = []
        self._length = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the chunk before ended with a backslash
        self._scalar = False  # a number, true, false, null or nonsense

    @property
    def data(self) -> bytes | None:
        return b"".join(self._parts) if self._length <= LONGEST else None

    def go_on(self, chunk: bytes, start: int) -> int:
        """Take what belongs to the element from `start` on; returns where it ends in this chunk."""
        end = self._find_end(chunk, start)
        self._length += end - start
        if self._length <= LONGEST:
            self._parts.append(chunk[start:end])
        else:
            self._parts.clear()
        return end

    def _find_end(self, chunk: bytes, place: int) -> int:
        if not self._length:
            self._scalar = chunk[place] not in b'{["'
            place += self._scalar
        while place < len(chunk):
            if self._scalar:
                found = _SCALAR_END.search(chunk, place)
                self.ended = found is not None
                return found.start() if found else len(chunk)
            place = self._past_string(chunk, place) if self._in_string else self._past_mark(chunk, place)
            if not self._depth and not self._in_string:
                self.ended = True
                return place
        return place

    def _past_string(self, chunk: bytes, place: int) -> int:
        place += self._escaped
        quote = chunk.find(b'"', place)
        end = quote if quote >= 0 else len(chunk)
        # The pattern takes ten times as long, so it is left for strings with escapes.
        place = end if chunk.find(b"\\", place, end) < 0 else _end(_IN_STRING, chunk, place)
        self._escaped = chunk[place : place + 1] == b"\\"  # the last byte of the chunk
        self._in_string = place == len(chunk) or self._escaped
        return place + 1 if place < len(chunk) else place

    def _past_mark(self, chunk: bytes, place: int) -> int:
        found = _MARK.search(chunk, place)
        if found is None:
            return len(chunk)
        mark = found.group()
        self._in_string = mark == b'"'
        self._depth += (mark in b"{[") - (mark in b"}]")
        return found.end()


def _end(pattern: re.Pattern[bytes], chunk: bytes, place: int) -> int:
    """Where the match that begins at `place` ends; all patterns here match the empty text too."""
    found = pattern.match(chunk, place)
    return found.end() if found else place
