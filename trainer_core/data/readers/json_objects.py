"""JSON Lines, and JSON files that are one array of objects.

Objects are decoded strictly and fast with msgspec, or leniently with the json module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from trainer_core.data.encodings import REPLACE_AND_COUNT
from trainer_core.data.readers.base import CHUNK, MAX_ROW_BYTES, TOO_LONG, FileInput, Row, iter_lines

_UTF_8: Final = ("utf-8", "utf-8-sig")
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of msgspec
_BLANK: Final = " \t\r\n\ufeff\u3000\xa0".encode()  # bytes of lines without content
# Both end at a bracket, a comma, a quote or the end of the buffer. The second skips whole strings. Groups are not
# possessive: before 3.11.5, Python then includes a group that failed (https://github.com/python/cpython/issues/106052).
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
_OUTSIDE: Final = re.compile(rb'[^"{}\[\],]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*"[^"{}\[\],]*+)*', re.DOTALL)


def read_jsonl(file: FileInput) -> Iterator[tuple[str, bytes | None]]:
    """The lines; None for one that is too long."""
    for number, line in enumerate(_iter_utf8_lines(file), 1):
        if line is None or line.strip(_BLANK):
            yield f"line {number}", line


def _iter_utf8_lines(file: FileInput) -> Iterator[bytes | None]:
    if file.source.encoding in _UTF_8:
        with file.open_binary() as binary:
            yield from iter_lines(binary, b"\n", MAX_ROW_BYTES)
    else:
        with file.open_text() as text:
            for line in iter_lines(text, "\n", MAX_ROW_BYTES):
                yield None if line is None else line.encode()


def decode_object(data: bytes | None) -> Row | str:
    """The row, or why it is bad. `data`: one object as UTF-8; None for one that is too long.

    Accepts NaN, infinities, lone surrogates, invalid UTF-8, and a byte order mark (of joined files).
    """
    if data is None:
        return TOO_LONG
    try:
        row = msgspec.json.decode(data)
    except _DECODE_ERRORS:
        try:
            row = json.loads(data.decode("utf-8-sig", REPLACE_AND_COUNT))
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "") or type(error).__name__
            return str(reason).removesuffix(" at").removesuffix(" starting")  # without the position in the row
    return row if isinstance(row, dict) else "not a JSON object"


# --- arrays ----------------------------------------------------------------------------------------


def read_json(file: FileInput) -> Iterator[tuple[str, bytes | None]]:
    """The elements of an array; None for one that is too long. Holds one element and one chunk.

    Raises `data.bad_format` if the file is no array or is truncated.
    """
    buffer, number, is_too_long = bytearray(), 0, False
    end, depth, in_string = 0, 0, False  # of what was scanned of the element
    for chunk in _iter_utf8_chunks(file):
        buffer += chunk
        if not depth:
            buffer = buffer.lstrip(_BLANK)
            if buffer and not buffer.startswith(b"["):
                raise file.bad_format_error("the beginning", "it should be an array of objects: [{…}, {…}]")
            depth = int(bool(buffer))
            del buffer[:1]
        while depth:
            scanned = (_IN_STRING if in_string else _OUTSIDE).match(buffer, end)
            end = scanned.end() if scanned else end  # both match the empty string
            mark = buffer[end : end + 1]
            if not mark or mark == b"\\":  # an escape sequence that is cut
                break
            end += 1
            in_string ^= mark == b'"'
            depth += int(mark in b"[{") - int(mark == b"]" or (mark == b"}" and depth > 1))
            if not depth or (depth == 1 and mark == b","):
                element = bytes(buffer[: end - 1]).strip(_BLANK)
                del buffer[:end]
                if element:
                    number += 1
                    yield f"element {number}", None if is_too_long or end > MAX_ROW_BYTES else element
                end, is_too_long = 0, False
                if not depth:
                    return
        if end > MAX_ROW_BYTES:
            is_too_long = True
            del buffer[: end - 1]  # not empty
            end = 1
    raise file.bad_format_error(f"element {number + 1}" if depth else "the beginning", "it ends too early")


def _iter_utf8_chunks(file: FileInput) -> Iterator[bytes]:
    if file.source.encoding in _UTF_8:
        with file.open_binary() as binary:
            while data := binary.read1(CHUNK):
                yield data
    else:
        with file.open_text() as text:
            while part := text.read(CHUNK):
                yield part.encode()
