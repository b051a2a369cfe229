"""A tar archive read once from its beginning to its end, in bounded memory.

The tarfile module would do, at a tenth of the speed on small members, and would hold a header of any
length that an archive claims. The format: POSIX.1-2001 pax, and the GNU manual's "Basic Tar Format".
No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trainer_core.data.encodings import Tally
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import Source, bad_format
from trainer_core.messages import TraindeckError

_BLOCK: Final = 512
_LONGEST_HEADER: Final = 1024 * 1024
_OCTAL: Final = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_FILES: Final = b"0\x007S"  # types that are regular files: plain, contiguous, sparse
_WITHOUT_DATA: Final = b"123456"  # links, devices, folders, pipes


class Entry(NamedTuple):
    """What a header says. `stored`: bytes up to the next header."""

    name: str
    size: int
    stored: int
    is_file: bool


class Archive:
    """The entries of a tar file, compressed or not. Each is followed by `read` and `pass_over` of what it stores."""

    def __init__(self, source: Source, tally: Tally) -> None:
        self._source = source
        self._chunks = streams.chunks(source, tally)
        self._rest = b""
        self._place = 0  # in `_rest`
        self._last = ""  # the entry before

    def entries(self) -> Iterator[Entry]:
        """Every entry but those that only describe the next. Raises `data.bad_format`."""
        described: dict[str, bytes] = {}
        while header := self._header():
            kind, size = header[156:157], self._number(header[124:136])
            if kind in b"xLKg":
                if size > _LONGEST_HEADER:
                    raise self._damaged(f"a header of {size} bytes")
                content = self.read(size)
                self.pass_over(-size % _BLOCK)
                if kind == b"L":
                    described["path"] = content.rstrip(b"\0")
                elif kind == b"x":
                    described |= self._records(content)
                continue
            if kind == b"S":
                self._pass_sparse_map(header)
            if "size" in described:
                size = self._number(described["size"], base=10)
            name = _decoded(described.get("path") or _short_name(header))
            described = {}
            stored = 0 if kind in _WITHOUT_DATA else size + -size % _BLOCK
            self._last = name
            yield Entry(name, size, stored, kind in _FILES)

    def read(self, size: int) -> bytes:
        """The next `size` bytes. Raises `data.bad_format` where the archive breaks off."""
        parts = list(self._take(size))
        if sum(map(len, parts)) < size:
            raise self._damaged("it breaks off")
        return b"".join(parts)

    def pass_over(self, size: int) -> None:
        """Past the next `size` bytes, without holding them."""
        if sum(map(len, self._take(size))) < size:
            raise self._damaged("it breaks off")

    def _take(self, size: int) -> Iterator[bytes]:
        while size:
            if self._place == len(self._rest):
                self._rest, self._place = next(self._chunks, b""), 0
                if not self._rest:
                    return
            part = self._rest[self._place : self._place + size]
            self._place += len(part)
            size -= len(part)
            yield part

    def _header(self) -> bytes:
        """The next header; empty at the end, which some writers do not mark."""
        header = b"".join(self._take(_BLOCK))
        if not header or not header.strip(b"\0"):
            if not header and not self._last:
                raise self._damaged("it is not a tar archive")
            return b""
        if len(header) < _BLOCK and self._last:
            raise self._damaged("it breaks off")
        if len(header) < _BLOCK or not _is_sound(header):
            raise self._damaged("a header is damaged" if self._last else "it is not a tar archive")
        return header

    def _number(self, field: bytes, base: int = 8) -> int:
        """A size: octal digits, or (GNU) a binary number after a set bit."""
        if base == 8 and field[:1] == b"\x80":
            return int.from_bytes(field[1:], "big")
        digits = _OCTAL.fullmatch(field) if base == 8 else re.fullmatch(rb"([0-9]{1,20})", field)
        if digits is None:
            raise self._damaged("a header is damaged")
        return int(digits[1] or b"0", base)

    def _records(self, content: bytes) -> dict[str, bytes]:
        """The pax records `LENGTH KEY=VALUE` that matter here."""
        found: dict[str, bytes] = {}
        while content.strip(b"\0"):
            length = content.partition(b" ")[0]
            end = self._number(length, base=10)
            key, equals, value = content[len(length) + 1 : max(0, end - 1)].partition(b"=")
            if not equals or end > len(content):  # or no more than its own length: `equals` is empty then
                raise self._damaged("a header is damaged")
            if key in (b"path", b"size"):
                found[key.decode()] = value
            content = content[end:]
        return found

    def _pass_sparse_map(self, header: bytes) -> None:
        """The blocks that say where the holes of a sparse file are; its data follows without them."""
        more = header[482]
        while more:
            more = self.read(_BLOCK)[504]

    def _damaged(self, reason: str) -> TraindeckError:
        return bad_format(self._source, f"after {self._last}" if self._last else "its beginning", reason)


def _is_sound(header: bytes) -> bool:
    """Whether the sum in the header is right; old writers summed signed bytes."""
    digits = _OCTAL.fullmatch(header[148:156])
    if digits is None or not digits[1]:
        return False
    rest = header[:148] + b" " * 8 + header[156:]
    given, unsigned = int(digits[1], 8), sum(rest)
    return given == unsigned or given == unsigned - 256 * sum(byte > 127 for byte in rest)


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _decoded(name: bytes) -> str:
    for encoding in ("utf-8", "gb18030"):
        try:
            return name.decode(encoding)
        except UnicodeDecodeError:
            pass
    return name.decode("utf-8", "replace")
