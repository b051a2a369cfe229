"""JSON Lines, and JSON files that are one array of objects.

Objects are decoded strictly and fast with msgspec, or leniently with the json module.
No torch, no Qt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec

from trainer_core.data.encodings import ReadStats, TextDecoder, decode_chunks
from trainer_core.data.readers.base import (
    MAX_ROW_BYTES,
    TOO_LONG,
    ReadOptions,
    Row,
    SourceFile,
    bad_format_error,
    decode_rows,
    read_chunks,
)
from trainer_core.data.readers.text import split_lines

_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of msgspec
_SEPARATORS: Final = b", \t\r\n"
_SCALAR_END: Final = re.compile(rb"[, \t\r\n\]}]")
# Ends at a bracket, at the quote of a string that is not complete yet, or at the end of the buffer.
_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_TO_QUOTE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def read_jsonl(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of one JSON object per line. Other lines are bad rows."""
    stats.unit = "line"
    numbered = enumerate(split_lines(_read_utf8(source, stats), b"\n", MAX_ROW_BYTES), 1)
    filled = ((number, line) for number, line in numbered if line is None or not _is_blank(line))
    return decode_rows(filled, lambda data: decode_object(data, stats), options, stats)


def read_json(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of an array of JSON objects. Elements that are not objects are bad rows."""
    stats.unit = "element"
    elements = enumerate(_iter_elements(source, stats), 1)
    return decode_rows(elements, lambda data: decode_object(data, stats), options, stats)


def _read_utf8(source: SourceFile, stats: ReadStats) -> Iterator[bytes]:
    """The file as UTF-8 in chunks."""
    chunks = read_chunks(source, stats)
    if source.encoding == "utf-8":
        return chunks
    return (text.encode("utf-8") for text in decode_chunks(chunks, source.encoding, stats))


def _is_blank(line: bytes) -> bool:
    """Whether a line has only white space (also Chinese) and byte order marks."""
    filled = line.strip()
    return not filled or (filled[0] >= 0x80 and not filled.decode("utf-8", "replace").strip(" \ufeff\u3000\xa0"))


def decode_object(data: bytes | None, stats: ReadStats) -> Row | str:
    """The row, or why it is bad. `data`: one object as UTF-8; None for one that is too long."""
    if data is None:
        return TOO_LONG
    try:
        row = msgspec.json.decode(data)
    except _DECODE_ERRORS:
        return _decode_leniently(data, stats)
    return row if isinstance(row, dict) else "not a JSON object"


def _decode_leniently(data: bytes, stats: ReadStats) -> Row | str:
    """Accepts NaN, infinities, lone surrogates, invalid UTF-8, and a byte order mark (of joined files)."""
    decoder = TextDecoder("utf-8")
    text = decoder.decode(data, final=True)
    stats.undecodable += decoder.undecodable
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "") or type(error).__name__
        return str(reason).removesuffix(" at").removesuffix(" starting")  # without the position in the row
    return row if isinstance(row, dict) else "not a JSON object"


# --- arrays ----------------------------------------------------------------------------------------


def _iter_elements(source: SourceFile, stats: ReadStats) -> Iterator[bytes | None]:
    """The bytes of each element; None for one longer than `MAX_ROW_BYTES`. Holds one element and one chunk."""
    chunks = _read_utf8(source, stats)
    buffer, number = bytearray(), 0
    while not buffer and (chunk := next(chunks, b"")):
        buffer += chunk.lstrip(b" \t\r\n")
    if not buffer.startswith(b"["):
        reason = "it should be an array of objects: [{…}, {…}]" if buffer else "it ends too early"
        raise bad_format_error(source, "the beginning", reason)
    del buffer[:1]
    scanner, is_too_long = _ElementScanner(buffer), False
    for chunk in chain([b""], chunks):
        buffer += chunk
        while scanner.find_end():
            number += 1
            yield None if is_too_long or scanner.end > MAX_ROW_BYTES else bytes(buffer[: scanner.end])
            scanner.discard()
            scanner.first, is_too_long = b"", False
        if buffer.startswith(b"]") and not scanner.first:
            return
        if scanner.end > MAX_ROW_BYTES:
            is_too_long = True
            scanner.discard()
    raise bad_format_error(source, f"element {number + 1}", "it ends too early")


class _ElementScanner:
    """Finds the end of the array element at the beginning of a buffer that grows."""

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self.end = 0  # of what was scanned of the element
        self.first = b""  # the first byte of the element; empty between elements
        self._depth = 0  # of brackets
        self._in_string = False

    def discard(self) -> None:
        """Remove what was scanned from the buffer."""
        del self._buffer[: self.end]
        self.end = 0

    def find_end(self) -> bool:
        """Scan to the end of the element. Returns False if it is not in the buffer, or at the end of the array."""
        buffer = self._buffer
        if not self.first:
            del buffer[: len(buffer) - len(buffer.lstrip(_SEPARATORS))]
            if not buffer or buffer.startswith(b"]"):
                return False
            self.first, self.end = bytes(buffer[:1]), 1
            self._in_string, self._depth = self.first == b'"', int(self.first in b"{[")
        if self.first not in b'{["':
            found = _SCALAR_END.search(buffer, self.end)
            self.end = found.start() if found else len(buffer)
            return found is not None
        while self._in_string or self._depth:
            found = (_TO_QUOTE if self._in_string else _TO_BRACKET).match(buffer, self.end)
            self.end = found.end() if found else self.end  # both match the empty string
            mark = buffer[self.end : self.end + 1]
            if not mark or mark == b"\\":  # an escape sequence that is cut
                return False
            self.end += 1
            if mark == b'"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in b"{[" else -1
        return True
