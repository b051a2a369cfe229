"""WebDataset shards: tar archives in which the files of a sample are adjacent.

The archive is read as a stream. Nothing is extracted, and no name in it is ever opened.
No torch, no Qt.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Final, Self

from trainer_core.data.encodings import ReadStats, TextDecoder, detect_encoding
from trainer_core.data.readers.base import (
    MAX_ROW_BYTES,
    TEXT,
    TOO_LONG,
    ReadOptions,
    Row,
    SourceFile,
    bad_format_error,
    decode_rows,
    read_chunks,
)
from trainer_core.data.readers.json_objects import decode_object

_MEMBER_NAME: Final = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)")  # key and what follows the first dot of the name
_TEXT, _JSON = "txt", "json"
_MAX_HEADER_BYTES: Final = 1024 * 1024
_EXTENDED_HEADERS: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
_END_ERRORS: Final = (tarfile.EmptyHeaderError, tarfile.EOFHeaderError)  # type: ignore[attr-defined]

Members = dict[str, bytes | None]  # by extension; None if longer than MAX_ROW_BYTES


def read_tar(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """One row per sample: `.txt` is its text, the keys of `.json` are its columns. Other members are ignored."""
    stats.unit = "sample"
    return decode_rows(_iter_samples(source, stats), lambda members: _decode_sample(members, stats), options, stats)


def _decode_sample(members: Members, stats: ReadStats) -> Row | str:
    row: Row = {}
    for extension, data in sorted(members.items()):  # .json before .txt, whose text wins
        if data is None:
            return f".{extension}: {TOO_LONG}"
        text = _decode_text(data, stats)
        if extension == _TEXT:
            row = {**row, TEXT: text}
            continue
        found = decode_object(text.encode("utf-8"), stats)
        if isinstance(found, str):
            return f".{extension}: {found}"
        row = found
    return row


def _decode_text(data: bytes, stats: ReadStats) -> str:
    decoder = TextDecoder(detect_encoding(io.BytesIO(data), len(data)))
    text = decoder.decode(data, final=True)
    stats.undecodable += decoder.undecodable
    return text


def _iter_samples(source: SourceFile, stats: ReadStats) -> Iterator[tuple[str, Members]]:
    """Key and members of each sample."""
    key = ""
    members: Members = {}
    for sample_key, extension, data in _iter_members(source, stats):
        if members and (sample_key != key or extension in members):
            yield key, members
            members = {}
        key = sample_key
        members[extension] = data
    if members:
        yield key, members


def _iter_members(source: SourceFile, stats: ReadStats) -> Iterator[tuple[str, str, bytes | None]]:
    """Sample key, extension and content of each .txt and .json member.

    Raises `data.bad_format` if the archive is damaged or truncated.
    """
    last_name = ""
    file: Any = _ChunkFile(read_chunks(source, stats))
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_Header, encoding="utf-8", errors="replace") as archive:
            while entry := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
                last_name = entry.name
                key, extension = _split_name(entry.name) if entry.isreg() else ("", "")
                if extension in (_TEXT, _JSON):
                    content = archive.extractfile(entry) if entry.size <= MAX_ROW_BYTES else None
                    yield key, extension, content.read() if content else None
    except (tarfile.TarError, ValueError, OverflowError) as error:
        reason = str(error) if isinstance(error, _DamagedError) else "it breaks off"
        raise bad_format_error(source, f"after {last_name}" if last_name else "its beginning", reason) from error


def _split_name(name: str) -> tuple[str, str]:
    """`a/b.en.txt` is a sample `a/b` with the extension `txt`; a hidden file is neither."""
    named = _MEMBER_NAME.fullmatch(name.replace("\\", "/").removeprefix("./"))
    return (named[1], named[2].rpartition(".")[2].lower()) if named else ("", "")


class _DamagedError(tarfile.TarError):
    """The archive cannot be read further; the message says why."""


class _Header(tarfile.TarInfo):
    """Raises `_DamagedError` where `tarfile` ends silently or reads a header of any length."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED_HEADERS and header.size > _MAX_HEADER_BYTES:
            raise _DamagedError(f"a header of {header.size} bytes")
        return header

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            position = archive.fileobj.tell()
            if position and isinstance(error, _END_ERRORS):
                raise
            is_first = position <= tarfile.BLOCKSIZE
            raise _DamagedError("it is not a tar archive" if is_first else "a header is damaged") from error


class _ChunkFile:
    """Chunks as the file object that `tarfile` reads as a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest, self._is_at_end = chunks, b"", False

    def read(self, size: int) -> bytes:
        """At most `size` bytes. The second read at the end raises, since `tarfile` would skip any number of bytes."""
        if self._is_at_end:
            raise tarfile.ReadError
        self._rest = self._rest or next(self._chunks, b"")
        self._is_at_end = not self._rest
        part, self._rest = self._rest[:size], self._rest[size:]
        return part
