"""Reads files in chunks, decompressing gzip and zstd.

No torch, no Qt.
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from trainer_core.data.encodings import CHUNK, ReadStats
from trainer_core.data.readers.base import SourceFile, bad_format_error
from trainer_core.messages import TraindeckError

_TRUNCATED: Final = "the compressed data breaks off"


class _DamagedError(Exception):
    """The compressed data is damaged; the message is the reason."""


def read_chunks(source: SourceFile, stats: ReadStats) -> Iterator[bytes]:
    """Decompressed, non-empty chunks of at most `CHUNK` bytes.

    Raises `OSError`, `data.unreadable` if it is not a regular file, and `data.bad_format` if the compressed data is
    damaged or truncated.
    """
    require_regular_file(source.path)
    parts = {"": _read_uncompressed, "gzip": _read_gzip, "zstd": _read_zstd}[source.compression](source.path)
    done = 0
    try:
        for part, done in parts:
            stats.content += len(part)
            yield part
            stats.advance(done)
    except _DamagedError as error:
        broken = str(error) == _TRUNCATED
        place = "its end" if broken else f"byte {done} of {source.bytes}" if done else "its beginning"
        where = f"{place}, after {stats.position}" if stats.number else place
        raise bad_format_error(source, where, str(error)) from error


def read_head(path: Path, compression: str, size: int = 1024 * 1024) -> bytes:
    """The first `size` decompressed bytes. Raises the errors of `read_chunks`."""
    source = SourceFile(path, compression or "text", "", path.stat().st_size, compression)
    return b"".join(islice(read_chunks(source, ReadStats()), -(-size // CHUNK)))[:size]


def require_regular_file(path: Path) -> None:
    """Raises `data.unreadable` for folders, pipes and devices. Opening a pipe would block."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TraindeckError("data.unreadable", path=str(path), reason="it is not a regular file")


def _read_uncompressed(path: Path) -> Iterator[tuple[bytes, int]]:
    """Chunks, each with the number of bytes read from disk."""
    done = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK):
            done += len(data)
            yield data, done


def _read_gzip(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unzip:
        while True:
            try:
                part = unzip.read(CHUNK)
            except EOFError as error:
                raise _DamagedError(_TRUNCATED) from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise _DamagedError(str(error)) from error
            if not part:
                return
            yield part, file.tell()


def _read_zstd(path: Path) -> Iterator[tuple[bytes, int]]:
    import pyarrow as pa  # slow to import, and rarely needed

    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as unzip:
        while True:
            try:
                part = unzip.read(CHUNK)
            except OSError as error:
                if error.errno is not None:
                    raise
                broken = "Truncated" in str(error)
                raise _DamagedError(_TRUNCATED if broken else str(error).splitlines()[0]) from error
            if not part:
                return
            yield part, file.tell()
