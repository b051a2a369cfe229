"""Note, tags and archive flag of a run, stored as JSON in its folder.

A damaged file never hides a run, and is renamed instead of overwritten.
"""

from __future__ import annotations

import errno
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from trainer_core.system import files

NOTES_FILE: Final = "notes.json"
_MAX_FILE_BYTES: Final = 1024 * 1024
_RETRY_S: Final = 0.3  # a virus scanner may have opened the file


class RunNotes(msgspec.Struct, frozen=True, kw_only=True):
    """New fields need a default."""

    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False


def read_notes(run: Path) -> RunNotes:
    """Read the notes of a run; empty notes if there are none or they cannot be read."""
    try:
        return _read_file(run / NOTES_FILE)
    except (OSError, ValueError, RecursionError):
        return RunNotes()


def write_notes(run: Path, notes: RunNotes) -> None:
    """Write the notes. Raises `OSError`, also if the run folder does not exist."""
    path = run / NOTES_FILE
    if not run.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the run is gone", str(run))
    try:
        if path.exists():
            _read_file(path)
    except (ValueError, RecursionError):
        files.replace(path, path.with_name(f"{NOTES_FILE}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"))
    files.write_atomic(path, msgspec.json.format(msgspec.json.encode(notes), indent=1))


def _read_file(path: Path) -> RunNotes:
    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)

    return msgspec.json.decode(files.retry_sharing_violation(read, _RETRY_S), type=RunNotes)


def parse_tags(text: str) -> tuple[str, ...]:
    """Tags as typed, separated by commas or semicolons, ASCII or Chinese, without case-insensitive duplicates."""
    found: dict[str, str] = {}
    for tag in re.split("[,，、;；]", text):
        if words := tag.split():
            found.setdefault(" ".join(words).casefold(), " ".join(words))
    return tuple(found.values())
