"""Types and helpers shared by all readers.

No torch, no Qt.
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from trainer_core.data.columns import PLAIN_TEXT, ColumnMapping
from trainer_core.data.encodings import CHUNK, ReadStats
from trainer_core.messages import TraindeckError

TEXT: Final = "text"  # the only column of plain text
MAX_ROW_BYTES: Final = 64 * 1024 * 1024  # limit for a line, an element or a member; more is a bad row
TOO_LONG: Final = f"longer than {MAX_ROW_BYTES >> 20} MiB"
_TRUNCATED: Final = "the compressed data breaks off"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read.

    `encoding` is empty for binary formats. `bytes` is the size on disk. `compression` is "", "gzip" or "zstd". A
    sample of the file is the lines in the byte `ranges`, or its beginning up to about `max_characters`.
    """

    path: Path
    format: str
    encoding: str
    bytes: int
    compression: str = ""
    mapping: ColumnMapping = PLAIN_TEXT
    max_characters: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def bytes_to_read(self) -> int:
        """Approximate."""
        if self.ranges:
            return sum(end - start for start, end in self.ranges)
        return self.bytes if self.max_characters is None else min(self.bytes, self.max_characters)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file.

    `columns`: the columns to read, at least; empty for all. `piece_chars`: length of the pieces of plain text.
    `skip_rows`: resume after this number of rows (good and bad) or pieces.
    """

    columns: tuple[str, ...] = ()
    piece_chars: int = 64 * 1024
    skip_rows: int = 0


Row = Mapping[str, Any]
Reader = Callable[[SourceFile, ReadOptions, ReadStats], Iterator[Row]]
T = TypeVar("T")


def decode_rows(
    items: Iterable[tuple[int | str, T]], decode: Callable[[T], Row | str], options: ReadOptions, stats: ReadStats
) -> Iterator[Row]:
    """Decode the items after the first `skip_rows`, given by position. `decode` returns why a row is bad."""
    for number, item in islice(items, options.skip_rows, None):
        stats.number = number
        stats.read += 1
        row = decode(item)
        if isinstance(row, str):
            stats.record_bad_row(stats.position, row)
        else:
            yield row


def bad_format_error(source: SourceFile, position: str, reason: str) -> TraindeckError:
    """The error for a file that cannot be read further."""
    params = {"path": str(source.path), "format": source.format, "position": position, "reason": reason.rstrip(".")}
    return TraindeckError("data.bad_format", **params)


def require_regular_file(path: Path) -> None:
    """Raises `data.unreadable` for folders, pipes and devices. Opening a pipe would block."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TraindeckError("data.unreadable", path=str(path), reason="it is not a regular file")


def read_chunks(source: SourceFile, stats: ReadStats) -> Iterator[bytes]:
    """Decompressed, non-empty chunks of at most `CHUNK` bytes.

    Raises `OSError`, `data.unreadable` if it is not a regular file, and `data.bad_format` if the compressed data is
    damaged or truncated.
    """
    require_regular_file(source.path)
    done = 0
    with ExitStack() as stack:
        raw = stack.enter_context(source.path.open("rb", buffering=0))
        file = stack.enter_context(_decompress(raw, source.compression))
        for start, end in source.ranges or ((0, None),):
            if end is not None:
                file.seek(start)
                stats.range_start = start
            while chunk := _read_chunk(source, file, CHUNK if end is None else min(CHUNK, end - start), done, stats):
                start += len(chunk)
                done = raw.tell() if end is None else done + len(chunk)
                yield chunk
                stats.advance(done)


def _decompress(raw: IO[bytes], compression: str) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "zstd":
        import pyarrow as pa  # slow to import, and rarely needed

        return pa.CompressedInputStream(raw, "zstd")
    return raw


def _read_chunk(source: SourceFile, file: Any, size: int, done: int, stats: ReadStats) -> bytes:
    """Raises `data.bad_format` if the compressed data is damaged. Errors of the system are raised as they are."""
    try:
        chunk: bytes = file.read(size)
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        is_truncated = isinstance(error, EOFError) or "Truncated" in str(error)
        place = "its end" if is_truncated else f"byte {done} of {source.bytes}" if done else "its beginning"
        position = f"{place}, after {stats.position}" if stats.number else place
        reason = _TRUNCATED if is_truncated else str(error).splitlines()[0]
        raise bad_format_error(source, position, reason) from error
    return chunk


def read_head(path: Path, compression: str, size: int = 1024 * 1024) -> bytes:
    """The first `size` decompressed bytes. Raises the errors of `read_chunks`."""
    source = SourceFile(path, compression or "text", "", path.stat().st_size, compression)
    return b"".join(islice(read_chunks(source, ReadStats()), -(-size // CHUNK)))[:size]
