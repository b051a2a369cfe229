"""WebDataset shards: tar archives in which the files of a sample are adjacent.

The archive is read as a stream. Nothing is extracted, and no name in it is ever opened.
No torch, no Qt.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from trainer_core.data.encodings import ReadStats, TextDecoder, detect_encoding
from trainer_core.data.readers import streams
from trainer_core.data.readers.base import (
    MAX_ROW_BYTES,
    TEXT,
    TOO_LONG,
    ReadOptions,
    Row,
    SourceFile,
    bad_format_error,
    decode_rows,
)
from trainer_core.data.readers.json_rows import RowDecoder

_PATH_TRAVERSAL: Final = re.compile(r"(^|[/\\])\.\.($|[/\\])|^[/\\]|^[A-Za-z]:")
_MEMBER_NAME: Final = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)")  # key and what follows the first dot of the name
_TEXT, _JSON = "txt", "json"
_MAX_HEADER_BYTES: Final = 1024 * 1024
_EXTENDED_HEADERS: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
_END_ERRORS: Final = (tarfile.EmptyHeaderError, tarfile.EOFHeaderError)  # type: ignore[attr-defined]
_BREAKS_OFF: Final = "it breaks off"


class _Member(NamedTuple):
    """A file in the archive. `data` is None if it is longer than `MAX_ROW_BYTES`."""

    name: str
    sample_key: str
    extension: str
    data: bytes | None


@dataclass(slots=True)
class _Sample:
    """The members of one key, or why there are none."""

    key: str
    members: dict[str, bytes | None] = field(default_factory=dict)
    error: str = ""


def read_tar(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """One row per sample: `.txt` is its text, the keys of `.json` are its columns. Other members are ignored."""
    stats.unit = "sample"
    rows = RowDecoder(options.columns, stats)
    samples = ((sample.key, sample) for sample in _iter_samples(source, stats))
    return decode_rows(samples, lambda sample: sample.error or _decode_sample(sample, rows, stats), options, stats)


def _decode_sample(sample: _Sample, rows: RowDecoder, stats: ReadStats) -> Row | str:
    row: Row = {}
    for kind, data in sorted(sample.members.items()):  # .json before .txt, whose text wins
        if data is None:
            return f".{kind}: {TOO_LONG}"
        text = _decode_text(data, stats)
        if kind == _TEXT:
            row = {**row, TEXT: text}
            continue
        found = rows.decode_row(text.encode("utf-8"))
        if isinstance(found, str):
            return f".{kind}: {found}"
        row = found
    return row


def _decode_text(data: bytes, stats: ReadStats) -> str:
    """A member's text; its encoding is detected."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        decoder = TextDecoder(detect_encoding(io.BytesIO(data), len(data)))
        text = decoder.decode(data, final=True)
        stats.undecodable += decoder.undecodable
        return text


def _iter_samples(source: SourceFile, stats: ReadStats) -> Iterator[_Sample]:
    sample = _Sample("")
    for member in _iter_members(source, stats):
        if _PATH_TRAVERSAL.search(member.name):
            yield _Sample(member.name, error="its name leads out of the archive")
            continue
        if member.sample_key != sample.key or member.extension in sample.members:
            if sample.members:
                yield sample
            sample = _Sample(member.sample_key)
        sample.members[member.extension] = member.data
    if sample.members:
        yield sample


def _iter_members(source: SourceFile, stats: ReadStats) -> Iterator[_Member]:
    """The .txt and .json files. Raises `data.bad_format` if the archive is damaged or truncated."""
    last_name, ignored = "", 0
    try:
        stream = _ForwardStream(streams.read_chunks(source, stats))
        archive = tarfile.TarFile(fileobj=stream, tarinfo=_Header, encoding="utf-8", errors="replace")  # type: ignore[arg-type]
        while entry := archive.next():
            archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
            last_name = entry.name
            key, kind = _split_name(entry.name) if entry.isreg() else ("", "")
            if kind in (_TEXT, _JSON):
                file = archive.extractfile(entry) if entry.size <= MAX_ROW_BYTES else None
                yield _Member(entry.name, key, kind, file.read() if file else None)
            else:
                ignored += entry.isreg()
                stats.ignored = ignored
    except (tarfile.TarError, ValueError, OverflowError) as error:
        reason = str(error) if isinstance(error, _DamagedError) else _BREAKS_OFF
        raise bad_format_error(source, f"after {last_name}" if last_name else "its beginning", reason) from error


def _split_name(name: str) -> tuple[str, str]:
    """`a/b.en.txt` is a sample `a/b` and its kind `txt`; a hidden file is neither."""
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


class _ForwardStream:
    """The decompressed archive as a file object that seeks forward only."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._chunk, self._start, self._position = chunks, b"", 0, 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise _DamagedError("a header is damaged")
        for _ in self._read_parts(position - self._position):
            pass
        if self._position < position:
            raise _DamagedError(_BREAKS_OFF)

    def read(self, size: int) -> bytes:
        return b"".join(self._read_parts(size))

    def _read_parts(self, size: int) -> Iterator[bytes]:
        while size > 0:
            if self._start == len(self._chunk):
                self._chunk, self._start = next(self._chunks, b""), 0
                if not self._chunk:
                    return
            part = self._chunk[self._start : self._start + size]
            self._start += len(part)
            self._position += len(part)
            size -= len(part)
            yield part
