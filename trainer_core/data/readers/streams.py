"""The bytes of a file, as they are or decompressed, in chunks.

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

from trainer_core.data.encodings import CHUNK, Tally
from trainer_core.data.readers.base import Source, bad_format
from trainer_core.messages import TraindeckError

_BREAKS_OFF: Final = "the compressed data breaks off"


class _DamagedError(Exception):
    """Compressed data that cannot be decompressed; the message says why."""


def chunks(source: Source, tally: Tally) -> Iterator[bytes]:
    """A file in chunks of at most `CHUNK` bytes, none of them empty, decompressed where it is compressed.

    However well a file is compressed, no more than a chunk of it is held. Raises `OSError`,
    `data.unreadable` for what is no regular file and `data.bad_format` where the compressed data is
    damaged or breaks off.
    """
    check_regular(source.path)
    parts = {"": _plain, "gzip": _gunzip, "zstd": _unzstd}[source.compression](source.path)
    done = 0
    try:
        for part, done in parts:
            tally.content += len(part)
            yield part
            tally.move(done)
    except _DamagedError as error:
        broken = str(error) == _BREAKS_OFF
        place = "its end" if broken else f"byte {done} of {source.bytes}" if done else "its beginning"
        where = f"{place}, after {tally.position}" if tally.number else place
        raise bad_format(source, where, str(error)) from error


def head(path: Path, compression: str, size: int = 1024 * 1024) -> bytes:
    """The first `size` bytes of a file once it is decompressed; raises as `chunks` does."""
    source = Source(path, compression or "text", "", path.stat().st_size, compression)
    return b"".join(islice(chunks(source, Tally()), -(-size // CHUNK)))[:size]


def check_regular(path: Path) -> None:
    """Raises `data.unreadable` for a folder, a pipe or a device: opening a pipe would wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TraindeckError("data.unreadable", path=str(path), reason="it is not a regular file")


def _plain(path: Path) -> Iterator[tuple[bytes, int]]:
    """Chunks, each with how many bytes of the file were read by then."""
    done = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK):
            done += len(data)
            yield data, done


def _gunzip(path: Path) -> Iterator[tuple[bytes, int]]:
    """The members of a gzip file."""
    with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unzip:
        while True:
            try:
                part = unzip.read(CHUNK)
            except EOFError as error:
                raise _DamagedError(_BREAKS_OFF) from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise _DamagedError(str(error)) from error
            if not part:
                return
            yield part, file.tell()


def _unzstd(path: Path) -> Iterator[tuple[bytes, int]]:
    """The frames of a zstd file."""
    import pyarrow as pa  # here: the window looks at text files without paying for it

    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as unzip:
        while True:
            try:
                part = unzip.read(CHUNK)
            except OSError as error:
                if error.errno is not None:
                    raise
                broken = "Truncated" in str(error)
                raise _DamagedError(_BREAKS_OFF if broken else str(error).splitlines()[0]) from error
            if not part:
                return
            yield part, file.tell()
