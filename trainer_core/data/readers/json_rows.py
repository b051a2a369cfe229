"""JSON objects as rows: decoded fast, and once more with patience where that fails.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypedDict, cast

import msgspec

from trainer_core.data.encodings import Decoder, Tally, decoded
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import Row, Source

_FAILURES: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of a decoder of msgspec
_HEAD: Final = 64 * 1024  # tells whether lines end in "\r" alone


class Rows:
    """From the bytes of JSON objects, UTF-8, to rows of the columns asked for; the others are passed over."""

    def __init__(self, columns: tuple[str, ...], tally: Tally) -> None:
        self._columns = columns
        self._tally = tally
        # msgspec 0.22 misses keys of a TypedDict that are not ASCII, depending on what was decoded before.
        self._whole = not columns or not all(name.isascii() for name in columns)
        kind: Any = dict[str, Any]
        if not self._whole:
            kind = cast(Callable[..., Any], TypedDict)("Columns", dict.fromkeys(columns, Any), total=False)
        self._decode = msgspec.json.Decoder(kind).decode
        self._decode_array = msgspec.json.Decoder(list[kind]).decode

    def row(self, data: bytes) -> Row | str:
        """The row of one object, or why there is none."""
        try:
            row = self._decode(data)
        except _FAILURES:
            return self._patiently(data)
        return self._chosen(row) if self._whole else cast(Row, row)

    def array(self, data: bytes) -> list[Row] | None:
        """The rows of an array of objects, or None where one of them wants patience."""
        try:
            rows = self._decode_array(data)
        except _FAILURES:
            return None
        return [self._chosen(row) for row in rows] if self._whole else rows

    def _chosen(self, row: dict[str, Any]) -> Row:
        return {name: row[name] for name in self._columns if name in row} if self._columns else row

    def _patiently(self, data: bytes) -> Row | str:
        """As the json module reads it: NaN and infinities, halves of surrogate pairs, bytes that are not UTF-8.

        A byte order mark is one more thing: it is left in the middle where files were put together.
        """
        decoder = Decoder("utf-8")
        text = decoder.feed(data, final=True)
        self._tally.undecodable += decoder.undecodable
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            told = getattr(error, "msg", "") or type(error).__name__
            return str(told).removesuffix(" at").removesuffix(" starting")  # what would follow is said as the row
        if not isinstance(row, dict):
            return "not a JSON object"
        return self._chosen(row)


def utf_8(source: Source, tally: Tally) -> Iterator[bytes]:
    """A file's text as UTF-8 without a byte order mark, in chunks; as it is wherever it is UTF-8 already."""
    chunks = streams.chunks(source, tally)
    head = b""
    while len(head) < _HEAD and (chunk := next(chunks, b"")):
        head += chunk
    if source.encoding in ("utf-8", "utf-8-sig") and (b"\r" not in head or b"\n" in head):
        return chain([head.removeprefix(b"\xef\xbb\xbf")], chunks)
    return _encoded(decoded(chain([head], chunks), source.encoding, tally))


def _encoded(texts: Iterable[str]) -> Iterator[bytes]:
    return (text.encode("utf-8") for text in texts)
