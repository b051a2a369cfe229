"""Detection of text encodings, and an error handler that replaces and counts bad bytes."""

from __future__ import annotations

import codecs
import re
from typing import BinaryIO, Final

SAMPLE_BYTES: Final = 1024 * 1024  # read from the beginning of the file
_NUM_SLICES, _SLICE_BYTES = 16, 64 * 1024  # read from the rest: a long file may begin with plain ASCII
_LEGACY_SAMPLE_BYTES: Final = 16 * 1024
_NON_ASCII: Final = re.compile(rb"[\x80-\xff]")

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BINARY_MAGIC: Final = (
    b"\x89PNG", b"PK\x03\x04", b"\x1f\x8b", b"%PDF-", b"\xff\xd8\xff", b"GIF8", b"7z\xbc\xaf", b"MZ\x90",
)  # fmt: skip
_CONTROL_BYTES: Final = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x0c\x1a\x1b"))
_ASCII_BYTES: Final = bytes(range(128))
_MAX_CONTROL_FRACTION: Final = 0.02
_MAX_UTF8_UNDECODABLE: Final = 0.1  # share of the non-ASCII bytes
_MULTIBYTE_ENCODINGS: Final = ("gb18030", "cp950", "big5hkscs", "cp932")
_CP1252_SCORE: Final = 0.45  # a multibyte encoding that scores worse is not the right one
# Last lead byte of the frequent characters, which these character sets list first.
_FREQUENT_LEAD_BYTES: Final = (("gb2312", 0xD7), ("big5", 0xC6), ("shift_jis", 0x97))


def looks_binary(head: bytes) -> bool:
    """Whether the beginning of a file is not text in any supported encoding."""
    if head.startswith(tuple(bom for bom, _ in _BOMS)):
        return False
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    return head.startswith(_BINARY_MAGIC) or b"\x00" in head or controls > len(head) * _MAX_CONTROL_FRACTION


def detect_encoding(file: BinaryIO, size: int) -> str:
    """The encoding of a file by its byte order mark or a bounded sample.

    UTF-8 if at least 90 % of the non-ASCII bytes decode, so that single bad bytes do not matter. Otherwise the best of
    GB18030 (includes GBK and GB2312), Big5 (of Taiwan or Hong Kong), Shift-JIS and Windows-1252.
    """
    file.seek(0)
    parts = [file.read(SAMPLE_BYTES)]
    for bom, name in _BOMS:
        if parts[0].startswith(bom):
            return name
    if size > SAMPLE_BYTES:
        for i in range(_NUM_SLICES):
            file.seek(SAMPLE_BYTES + (size - SAMPLE_BYTES) * i // _NUM_SLICES)
            parts.append(re.sub(rb"\A[\x80-\xbf]{1,3}", b"", file.read(_SLICE_BYTES)))  # part of a UTF-8 character
    if sum(_decode(part, "utf-8")[1] for part in parts) <= _MAX_UTF8_UNDECODABLE * sum(map(_count_non_ascii, parts)):
        return "utf-8"
    # Each from its first non-ASCII byte on: a line may be longer than the sample.
    lines = (
        line[found.start() :] for part in parts for line in part.split(b"\n") if (found := _NON_ASCII.search(line))
    )
    sample = b"\n".join(lines)[:_LEGACY_SAMPLE_BYTES]
    scores = {name: _score(sample, name) for name in _MULTIBYTE_ENCODINGS} | {"cp1252": _CP1252_SCORE}
    return min(scores, key=lambda name: scores[name])


def _score(sample: bytes, encoding: str) -> float:
    """The share of undecodable bytes plus the share of rare characters, both of the non-ASCII ones."""
    text, undecodable = _decode(sample, encoding)
    characters = [char for char in text if not char.isascii() and char != "\ufffd"]
    rare = sum(not _is_frequent(char) for char in characters)
    return undecodable / _count_non_ascii(sample) + rare / max(1, len(characters))


def _is_frequent(char: str) -> bool:
    codes = ((char.encode(charset, "ignore"), last) for charset, last in _FREQUENT_LEAD_BYTES)
    return any(len(code) == 2 and code[0] <= last for code, last in codes)


def _count_non_ascii(data: bytes) -> int:
    return len(data.translate(None, _ASCII_BYTES))


def _decode(data: bytes, encoding: str) -> tuple[str, int]:
    """The text, and the number of undecodable bytes. A character that is cut at the end is not counted."""
    global _num_replaced
    before = _num_replaced
    text = codecs.getincrementaldecoder(encoding)(REPLACE_AND_COUNT).decode(data)
    count, _num_replaced = _num_replaced - before, before
    return text, count


# --- error handler ---------------------------------------------------------------------------------

REPLACE_AND_COUNT: Final = "traindeck.count"  # `errors` of a decoder: replaces bad bytes by U+FFFD
_num_replaced = 0


def count_replaced_bytes() -> int:
    """Number of bytes that decoders with `REPLACE_AND_COUNT` have replaced, except in `detect_encoding`."""
    return _num_replaced


def _replace_and_count(error: UnicodeError) -> tuple[str, int]:
    global _num_replaced
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _num_replaced += error.end - error.start
    return "�", error.end


codecs.register_error(REPLACE_AND_COUNT, _replace_and_count)
