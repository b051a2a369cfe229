"""Decodes JSON objects: strictly and fast with msgspec, or leniently with the json module.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, TypedDict, cast

import msgspec

from trainer_core.data.encodings import ReadStats, TextDecoder, decode_chunks
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import TOO_LONG, Row, SourceFile

_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of msgspec
_HEAD_BYTES: Final = 64 * 1024  # checked for lines that end in "\r" alone


class RowDecoder:
    """Decodes JSON objects (UTF-8 bytes) to rows with the requested columns."""

    def __init__(self, columns: tuple[str, ...], stats: ReadStats) -> None:
        self._columns = columns
        self._tally = stats
        # msgspec 0.22 sometimes misses the non-ASCII keys of a TypedDict.
        self._selects_after_decoding = not columns or not all(name.isascii() for name in columns)
        kind: Any = dict[str, Any]
        if not self._selects_after_decoding:
            kind = cast(Callable[..., Any], TypedDict)("Columns", dict.fromkeys(columns, Any), total=False)
        self._decode = msgspec.json.Decoder(kind).decode

    def decode_row(self, data: bytes | None) -> Row | str:
        """The row, or why it is bad. `data`: one object; None for one that is too long."""
        if data is None:
            return TOO_LONG
        try:
            row = self._decode(data)
        except _DECODE_ERRORS:
            return self._decode_leniently(data)
        return self._select_columns(row) if self._selects_after_decoding else cast(Row, row)

    def _select_columns(self, row: dict[str, Any]) -> Row:
        return {name: row[name] for name in self._columns if name in row} if self._columns else row

    def _decode_leniently(self, data: bytes) -> Row | str:
        """Accepts NaN, infinities, lone surrogates, invalid UTF-8, and a byte order mark (of joined files)."""
        decoder = TextDecoder("utf-8")
        text = decoder.decode(data, final=True)
        self._tally.undecodable += decoder.undecodable
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "") or type(error).__name__
            return str(reason).removesuffix(" at").removesuffix(" starting")  # without the position in the row
        if not isinstance(row, dict):
            return "not a JSON object"
        return self._select_columns(row)


def read_utf8(source: SourceFile, stats: ReadStats) -> Iterator[bytes]:
    """The file as UTF-8 in chunks, without a byte order mark."""
    chunks = streams.read_chunks(source, stats)
    head = b""
    while len(head) < _HEAD_BYTES and (chunk := next(chunks, b"")):
        head += chunk
    if source.encoding in ("utf-8", "utf-8-sig") and (b"\r" not in head or b"\n" in head):
        return chain([head.removeprefix(b"\xef\xbb\xbf")], chunks)
    return (text.encode("utf-8") for text in decode_chunks(chain([head], chunks), source.encoding, stats))
