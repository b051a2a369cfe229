"""A JSON file that is one array of objects.

No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from trainer_core.data.encodings import ReadStats
from trainer_core.data.readers.base import MAX_ROW_BYTES, ReadOptions, Row, SourceFile, bad_format_error, decode_rows
from trainer_core.data.readers.json_rows import RowDecoder, read_utf8

_SEPARATORS: Final = re.compile(rb"[, \t\r\n]*+")
_SCALAR_END: Final = re.compile(rb"[, \t\r\n\]}]")
# Ends at a bracket, at the quote of a string that is not complete yet, or at the end of the buffer.
_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_TO_QUOTE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def read_json(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of an array of JSON objects. Elements that are not objects are bad rows."""
    stats.unit = "element"
    decoder = RowDecoder(options.columns, stats)
    return decode_rows(enumerate(_iter_elements(source, stats), 1), decoder.decode_row, options, stats)


def _iter_elements(source: SourceFile, stats: ReadStats) -> Iterator[bytes | None]:
    """The bytes of each element; None for one longer than `MAX_ROW_BYTES`."""
    elements, number = None, 0
    for chunk in read_utf8(source, stats):
        if elements is None:
            chunk = chunk.lstrip(b" \t\r\n")
            if not chunk:
                continue
            if not chunk.startswith(b"["):
                raise bad_format_error(source, "the beginning", "it should be an array of objects: [{…}, {…}]")
            elements, chunk = _ElementSplitter(), chunk[1:]
        for element in elements.feed(chunk):
            number += 1
            yield element
        if elements.finished:
            return
    raise bad_format_error(source, f"element {number + 1}" if elements else "the beginning", "it ends too early")


class _ElementSplitter:
    """Splits the inside of an array into elements. Holds at most one element and one chunk."""

    def __init__(self) -> None:
        self.finished = False  # the end of the array was found
        self._buffer = bytearray()
        self._scanned = 0  # bytes of `_buffer` that belong to the current element
        self._first = b""  # the first byte of the current element; empty between elements
        self._depth = 0  # of brackets
        self._in_string = False
        self._too_long = False

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The elements that this chunk completes; None for one that is too long."""
        self._buffer += chunk
        while self._find_start() and self._find_end():
            too_long = self._too_long or self._scanned > MAX_ROW_BYTES
            yield None if too_long else bytes(self._buffer[: self._scanned])
            self._discard_scanned()
            self._first, self._too_long = b"", False
        if self._scanned > MAX_ROW_BYTES:
            self._too_long = True
            self._discard_scanned()

    def _discard_scanned(self) -> None:
        del self._buffer[: self._scanned]
        self._scanned = 0

    def _find_start(self) -> bool:
        """Skip separators, if between elements. Returns False at the end of the buffer or of the array."""
        if not self._first:
            del self._buffer[: _match_end(_SEPARATORS, self._buffer, 0)]
            self.finished = self._buffer.startswith(b"]")
            if not self._buffer or self.finished:
                return False
            self._first = bytes(self._buffer[:1])
            self._in_string, self._depth = self._first == b'"', int(self._first in b"{[")
            self._scanned = 1
        return True

    def _find_end(self) -> bool:
        """Scan to the end of the element. Returns False if it is not in the buffer."""
        buffer = self._buffer
        if self._first not in b'{["':
            found = _SCALAR_END.search(buffer, self._scanned)
            self._scanned = found.start() if found else len(buffer)
            return found is not None
        while self._in_string or self._depth:
            end = _match_end(_TO_QUOTE if self._in_string else _TO_BRACKET, buffer, self._scanned)
            mark = buffer[end : end + 1]
            if not mark or mark == b"\\":  # an escape sequence that is cut
                self._scanned = end
                return False
            self._scanned = end + 1
            if mark == b'"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in b"{[" else -1
        return True


def _match_end(pattern: re.Pattern[bytes], data: bytearray, start: int) -> int:
    found = pattern.match(data, start)
    assert found is not None  # all patterns match the empty string
    return found.end()
