"""WebDataset shards: tar archives in which the files of a sample are adjacent.

The archive is read as a stream. Nothing is extracted, and no name in it is ever opened.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Final

from trainer_core.data.encodings import REPLACE_AND_COUNT, detect_encoding
from trainer_core.data.readers.base import CHUNK, MAX_ROW_BYTES, TEXT, TOO_LONG, FileInput, Row
from trainer_core.data.readers.json_objects import decode_object

_MEMBER_NAME: Final = re.compile(r"((?:.*/)?[^/.]+)\.(?:[^/]*\.)?([^/.]*)")  # key and extension: `a/b` of a/b.en.txt
_MAX_READ_BYTES: Final = MAX_ROW_BYTES  # larger members are not read; a larger header is damaged
_TEXT, _JSON = "txt", "json"

Members = dict[str, bytes | None]  # by extension; None if longer than MAX_ROW_BYTES


def read_tar(file: FileInput) -> Iterator[tuple[str, Members]]:
    """The .txt and .json members of each sample."""
    key = ""
    members: Members = {}
    for sample_key, extension, data in _iter_members(file):
        if members and (sample_key != key or extension in members):
            yield f"sample {key}", members
            members = {}
        key = sample_key
        members[extension] = data
    if members:
        yield f"sample {key}", members


def decode_sample(members: Members) -> Row | str:
    """One row: `.txt` is its text, the keys of `.json` are its columns. Or why it is bad."""
    row: Row = {}
    for extension, data in sorted(members.items()):  # .json before .txt, whose text wins
        if data is None:
            return f".{extension}: {TOO_LONG}"
        encoding = detect_encoding(io.BytesIO(data), len(data))
        text = data.decode(encoding, REPLACE_AND_COUNT).removeprefix("\ufeff")
        if extension == _TEXT:
            row = {**row, TEXT: text}
            continue
        found = decode_object(text.encode())
        if isinstance(found, str):
            return f".{extension}: {found}"
        row = found
    return row


def _iter_members(file: FileInput) -> Iterator[tuple[str, str, bytes | None]]:
    """Sample key, extension and content of each .txt and .json member.

    Raises `data.bad_format` if the archive is damaged or truncated.
    """
    last_name = ""
    with file.open_binary() as binary:
        stream: Any = _ForwardStream(binary)
        try:
            with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="replace") as archive:
                while entry := archive.next():
                    archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
                    last_name = entry.name
                    named = _MEMBER_NAME.fullmatch(entry.name.replace("\\", "/").removeprefix("./"))
                    extension = named[2].lower() if named else ""
                    if named and entry.isreg() and extension in (_TEXT, _JSON):
                        content = archive.extractfile(entry) if entry.size <= MAX_ROW_BYTES else None
                        yield named[1], extension, content.read() if content else None
            if stream.last_block.strip(b"\0"):  # `tarfile` ends silently at a damaged header
                raise tarfile.HeaderError("a header is damaged")
        except (tarfile.TarError, ValueError, OverflowError) as error:
            reason = "a header is damaged" if isinstance(error, tarfile.HeaderError) else "it breaks off"
            reason = reason if last_name else "it is not a tar archive"
            raise file.bad_format_error(f"after {last_name}" if last_name else "its beginning", reason) from error


class _ForwardStream:
    """A stream as the file that `tarfile` reads, which seeks forward only."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file, self._position = file, 0
        self.last_block = b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        if size > _MAX_READ_BYTES:
            raise tarfile.HeaderError
        self.last_block = self._file.read(size)
        self._position += len(self.last_block)
        return self.last_block

    def seek(self, position: int) -> None:
        """Stops at the end of the file."""
        while self._position < position and self.read(min(position - self._position, CHUNK)):
            pass
