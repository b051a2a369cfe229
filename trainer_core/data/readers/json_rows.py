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

FAILURES: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of a decoder of msgspec
_HEAD: Final = 64 * 1024  # tells whether lines end in "\r" alone


def row_type(columns: tuple[str, ...]) -> Any:
    """What msgspec decodes an object to: a dict of the columns alone (none: of all). The others are passed over."""
    if not columns:
        return dict[str, Any]
    return cast(Callable[..., Any], TypedDict)("Columns", dict.fromkeys(columns, Any), total=False)


class Rows:
    """From the bytes of one JSON object, UTF-8, to a row."""

    def __init__(self, columns: tuple[str, ...], tally: Tally) -> None:
        self._columns = columns
        self._tally = tally
        self._decode = msgspec.json.Decoder(row_type(columns)).decode

    def row(self, data: bytes) -> Row | str:
        """The row, or why there is none."""
        try:
            return cast(Row, self._decode(data))
        except FAILURES:
            return self._patiently(data)

    def _patiently(self, data: bytes) -> Row | str:
        """As the json module reads it: NaN and infinities, halves of surrogate pairs, bytes that are not UTF-8."""
        decoder = Decoder("utf-8")
        text = decoder.feed(data, final=True)
        self._tally.undecodable += decoder.undecodable
        try:
            row = json.loads(text.lstrip("\ufeff"))  # left in the middle where files were put together
        except (ValueError, RecursionError) as error:
            return getattr(error, "msg", "") or type(error).__name__
        if not isinstance(row, dict):
            return "not a JSON object"
        return {name: row[name] for name in self._columns if name in row} if self._columns else row


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
