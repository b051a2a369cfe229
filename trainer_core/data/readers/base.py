"""Types and helpers shared by all readers."""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, AnyStr, Final

from trainer_core.data.column_mapping import PLAIN_TEXT, ColumnMapping
from trainer_core.data.encodings import REPLACE_AND_COUNT
from trainer_core.messages import TraindeckError

CHUNK: Final = 256 * 1024  # bytes read at once
TEXT: Final = "text"  # the only column of plain text
MAX_ROW_BYTES: Final = 64 * 1024 * 1024  # limit for a line, an element or a member; more is a bad row
TOO_LONG: Final = f"longer than {MAX_ROW_BYTES >> 20} MiB"

Row = Mapping[str, Any]


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


class FileInput:
    """A file that is being read, and the position reached.

    `columns`: the columns to read, at least; empty for all. `piece_chars`: length of the pieces of plain text.
    `skip_rows`: continue after this number of rows (good and bad) or pieces. `poll` is called about once per chunk.
    """

    def __init__(
        self,
        source: SourceFile,
        columns: tuple[str, ...] = (),
        piece_chars: int = 64 * 1024,
        skip_rows: int = 0,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.source, self.columns, self.piece_chars, self.skip_rows = source, columns, piece_chars, skip_rows
        self._poll = poll
        self.done = 0  # bytes on disk whose rows were returned, to the chunk
        self.position = ""  # of the last row, e.g. "line 17"
        self.range_start = 0  # of `SourceFile.ranges`; line numbers are unknown in later ranges

    def advance(self, done: int) -> None:
        self.done = done
        self._poll()

    def open_binary(self) -> io.BufferedReader:
        """The decompressed content. Reading raises `OSError`, and `data.bad_format` if compressed data is damaged."""
        require_regular_file(self.source.path)
        return io.BufferedReader(_Content(self), max(CHUNK, io.DEFAULT_BUFFER_SIZE))

    def open_text(self) -> io.TextIOWrapper:
        """The decoded content with `\\n` line ends."""
        binary, encoding = self.open_binary(), self.source.encoding
        binary.read({"utf-16": 2, "utf-32": 4}.get(encoding[:6], 0))  # the byte order mark
        return io.TextIOWrapper(binary, encoding, REPLACE_AND_COUNT)

    def bad_format_error(self, position: str, reason: str) -> TraindeckError:
        """The error for a file that cannot be read further."""
        params = {"path": str(self.source.path), "format": self.source.format, "position": position}
        return TraindeckError("data.bad_format", reason=reason.rstrip("."), **params)


class _Content(io.RawIOBase):
    """The decompressed bytes of a file, or of its ranges."""

    def __init__(self, file: FileInput) -> None:
        self._file, self._done = file, 0
        self._raw = file.source.path.open("rb", buffering=0)
        self._stream = _decompress(self._raw, file.source.compression)
        self._ranges = iter(file.source.ranges)
        self._range_rest: int | None = 0 if file.source.ranges else None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        self._file.advance(self._done)
        chunk = self._read(min(len(buffer), CHUNK))
        self._done = self._done + len(chunk) if self._file.source.ranges else self._raw.tell()
        if not chunk:
            self._file.advance(self._done)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _read(self, size: int) -> bytes:
        if self._range_rest == 0:
            start, end = next(self._ranges, (0, 0))
            self._raw.seek(start)
            self._range_rest, self._file.range_start = end - start, start
        if self._range_rest is not None:
            chunk = self._raw.read(min(size, self._range_rest))
            self._range_rest -= len(chunk)
            return chunk
        try:
            content: bytes = self._stream.read(size)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            is_truncated = isinstance(error, EOFError) or "Truncated" in str(error)
            place = "its end" if is_truncated else f"byte {self._done} of {self._file.source.bytes}"
            position = f"{place}, after {self._file.position}" if self._file.position else place
            reason = "the compressed data breaks off" if is_truncated else str(error).splitlines()[0]
            raise self._file.bad_format_error(position, reason) from error
        return content


def _decompress(raw: io.FileIO, compression: str) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "zstd":
        import pyarrow as pa  # slow to import, and rarely needed

        return pa.CompressedInputStream(raw, "zstd")
    return raw


def require_regular_file(path: Path) -> None:
    """Raises `data.unreadable` for folders, pipes and devices. Opening a pipe would block."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TraindeckError("data.unreadable", path=str(path), reason="it is not a regular file")


def read_head(path: Path, compression: str, size: int) -> bytes:
    """The first `size` decompressed bytes. Raises the errors of `FileInput.open_binary`."""
    with FileInput(SourceFile(path, compression or "text", "", path.stat().st_size, compression)).open_binary() as file:
        return file.read(size)


def iter_lines(file: IO[AnyStr], newline: AnyStr, max_length: int) -> Iterator[AnyStr | None]:
    """Lines with their ends; None for one longer than `max_length`, which is never held in memory.

    Unlike `str.splitlines`, does not split at U+2028.
    """
    parts: list[AnyStr] = []
    length = 0
    while part := file.readline(CHUNK):
        length += len(part)
        parts.append(part)
        if length > max_length:
            parts.clear()
        if part.endswith(newline):
            yield newline[:0].join(parts) if length <= max_length else None
            parts, length = [], 0
    if length:
        yield newline[:0].join(parts) if length <= max_length else None
