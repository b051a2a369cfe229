"""What bytes a text file is made of, and decoding them without ever giving up.

No torch, no Qt.
"""

from __future__ import annotations

import codecs
import io
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, Final

CHUNK: Final = 256 * 1024
SAMPLE: Final = 1024 * 1024  # the head of the file, read whole
_SLICES, _SLICE = 16, 64 * 1024  # and places spread over the rest: a long file may begin in plain ASCII

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAGIC: Final = (b"\x89PNG", b"PK\x03\x04", b"\x1f\x8b", b"%PDF-", b"\xff\xd8\xff", b"GIF8", b"7z\xbc\xaf", b"MZ\x90")
_CONTROL: Final = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x0c\x1a\x1b"))
_TRIED: Final = 4096  # characters that are looked at to tell UTF-16 without a mark
_ODD_SHARE: Final = 0.02
_PAIR: Final = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]")
_CUT: Final = 4  # bytes that a character cut at an end may cost
_USUAL: Final = bytes(range(0xA1, 0xC7))
_USUAL_SHARE, _LOW_SHARE, _BETWEEN_SHARE = 0.85, 0.2, 0.1
_FOREIGN_SHARE: Final = 0.1  # of the non-ASCII bytes; more than that undecodable means another encoding


def looks_binary(head: bytes) -> bool:
    """Whether the beginning of a file is not text of any encoding that is read here."""
    if head.startswith(tuple(bom for bom, _ in _BOMS)):
        return False
    if head.startswith(_MAGIC):
        return True
    if b"\x00" in head:
        return not _utf_16_without_mark(head)
    controls = len(head) - len(head.translate(None, _CONTROL))
    return controls > len(head) * _ODD_SHARE


def detect(file: BinaryIO, size: int) -> str:
    """The name of a file's encoding, from its byte order mark or a bounded sample of it.

    UTF-8 when (nearly) all of the sample is; else GB18030, the superset of GBK and GB2312, or Big5, which
    decodes as that too; Windows-1252 where none of them fits. Single bad bytes do not turn UTF-8 into something else.
    """
    file.seek(0)
    parts = [file.read(SAMPLE)]
    for bom, name in _BOMS:
        if parts[0].startswith(bom):
            return name
    if b"\x00" in parts[0] and (unmarked := _utf_16_without_mark(parts[0])):
        return unmarked
    if size > SAMPLE:
        for i in range(_SLICES):
            file.seek(SAMPLE + (size - SAMPLE) * i // _SLICES)
            parts.append(file.read(_SLICE))
    foreign = sum(len(part) - len(part.translate(None, bytes(range(128, 256)))) for part in parts)
    for name in ("utf-8", "gb18030"):
        if sum(_undecodable(part, name) for part in parts) <= foreign * _FOREIGN_SHARE:
            return _big5(parts, foreign) if name == "gb18030" else name
    return "cp1252"


def _big5(parts: list[bytes], foreign: int) -> str:
    """Which Big5 it is, what decodes as GB18030 though it means something else; else `gb18030`.

    In Big5 the usual characters begin with a byte up to 0xC6; the second is below 0x80 in four of ten, and never
    from there to 0xA0. In GB18030 it is above that in all but rare characters; in those, such as traditional
    ones, it may be any.
    """
    aligned = [parts[0], *(part[part.find(b"\n") + 1 :] for part in parts[1:])]  # on the beginning of a character
    pairs = b"".join(pair for part in aligned for pair in _PAIR.findall(part))
    firsts, seconds = pairs[::2], pairs[1::2]
    usual = len(firsts) - len(firsts.translate(None, _USUAL))
    low = len(seconds) - len(seconds.translate(None, bytes(range(0x80))))
    between = len(seconds) - low - len(seconds.translate(None, bytes(range(0xA1))))
    if usual < _USUAL_SHARE * len(firsts) or low < _LOW_SHARE * len(seconds) or between > _BETWEEN_SHARE * low:
        return "gb18030"
    taiwan, hong_kong = (sum(_undecodable(part, name) for part in parts) for name in ("cp950", "big5hkscs"))
    if min(taiwan, hong_kong) > foreign * _FOREIGN_SHARE:
        return "gb18030"
    return "big5hkscs" if 2 * hong_kong < taiwan - _CUT * len(parts) else "cp950"


def _utf_16_without_mark(head: bytes) -> str:
    """Which UTF-16 the beginning of a file with zero bytes is, or empty: it is binary.

    Binary data hardly ever decodes without a lone surrogate, a control or an unassigned character. Plain
    ASCII with a zero in it would, as Chinese, so there nearly every second byte has to be zero.
    """
    head = head[: min(len(head), 2 * _TRIED) & ~1]
    names = ["utf-16-le", "utf-16-be"]
    if head.isascii():
        zeros = {"utf-16-be": head[::2].count(0), "utf-16-le": head[1::2].count(0)}
        names = [name for name in names if zeros[name] == sum(zeros.values()) >= 0.4 * len(head)]
    odd = {name: _odd_share(head, name) for name in names}
    name = min(odd, key=lambda name: odd[name], default="")
    return name if name and odd[name] <= _ODD_SHARE else ""


def _odd_share(head: bytes, encoding: str) -> float:
    """The share of characters that no text has; 1 where the bytes do not decode."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)  # it may end within a character
    except UnicodeDecodeError:
        return 1.0
    odd = sum(unicodedata.category(char) in ("Cc", "Cn", "Co") and char not in "\t\n\r\f" for char in text)
    return odd / len(text) if text else 1.0


def _undecodable(part: bytes, encoding: str) -> int:
    """Bytes of `part` that do not decode; a character cut at either end is not counted."""
    if encoding == "utf-8":
        part = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", part)
    decoder = Decoder(encoding)
    decoder.feed(part)
    return decoder.undecodable


class _Counted(threading.local):
    bytes = 0


_counted = _Counted()


def _replace_and_count(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _counted.bytes += error.end - error.start
    return "�", error.end


codecs.register_error("traindeck.count", _replace_and_count)


class Decoder:
    """Bytes to text piece by piece, without a byte order mark at its beginning.

    Bad bytes become U+FFFD and are counted in `undecodable`.
    """

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("traindeck.count")
        self._begun = False
        self.undecodable = 0

    def feed(self, data: bytes, final: bool = False) -> str:
        before = _counted.bytes
        text = self._decoder.decode(data, final)
        self.undecodable += _counted.bytes - before
        if not self._begun and text:
            self._begun = True
            return text.removeprefix("\ufeff")
        return text


class Tally:
    """What reading one file has come across so far.

    `skip` and `move` may be overridden: to stop at a bad row, or to look up now and then while a reader
    works without giving a row.
    """

    __slots__ = (
        "bad", "content", "done", "first_bad", "ignored", "number", "read", "reason", "rows", "undecodable", "unit",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = 0  # bytes of the file as it is on disk
        self.read = 0  # rows that the reader gave plus those that it found bad: where to go on, as `Request.skip`
        self.rows = 0  # good ones
        self.bad = 0  # found by the reader or by whoever takes its rows
        self.first_bad = ""
        self.reason = ""
        self.undecodable = 0  # bytes, of `content`
        self.content = 0  # bytes read so far, decompressed; counted anew when a file is gone on with
        self.ignored = 0  # members of an archive that hold no text
        self.unit = "row"  # what positions count
        self.number: int | str = 0  # the place of the row given last

    @property
    def position(self) -> str:
        """The place of the row given last, as in "line 17"."""
        return f"{self.unit} {self.number}"

    def skip(self, position: str, reason: str) -> None:
        """A row that cannot be used."""
        if not self.bad:
            self.first_bad, self.reason = position, reason
        self.bad += 1

    def move(self, done: int) -> None:
        """The reader is past `done` bytes of the file; called about once a `CHUNK` or batch."""
        self.done = done

    def state(self) -> dict[str, int | str]:
        """What a later process needs to go on after the row given last: `restore` it, and skip `read` rows."""
        return {name: getattr(self, name) for name in _KEPT}

    def restore(self, state: Mapping[str, int | str]) -> None:
        for name in _KEPT:
            setattr(self, name, state[name])


_KEPT: Final = ("read", "rows", "bad", "first_bad", "reason", "undecodable", "ignored")


def decoded(chunks: Iterable[bytes], encoding: str, tally: Tally) -> Iterator[str]:
    """Text in chunks, its line ends as `\\n`."""
    decoder, newlines = Decoder(encoding), io.IncrementalNewlineDecoder(None, translate=True)
    for data in chunks:
        text = newlines.decode(decoder.feed(data))
        tally.undecodable = decoder.undecodable
        yield text
    text = newlines.decode(decoder.feed(b"", final=True), final=True)
    tally.undecodable = decoder.undecodable
    yield text
