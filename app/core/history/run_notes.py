"""Note, tags and archive flag of a run, stored as JSON in its folder.

A damaged file never hides a run, and is renamed instead of overwritten. Values of a wrong type are ignored; keys that a
later Traindeck wrote are kept.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_core.system import files

NOTES_FILE: Final = "notes.json"
TAG_SEPARATORS: Final = ",，、;；"
_MAX_FILE_BYTES: Final = 1024 * 1024  # bytes
_MAX_TAG_CHARS: Final = 40  # characters
_MAX_TAGS: Final = 30


class RunNotes(msgspec.Struct, frozen=True, kw_only=True):
    """New fields need a default."""

    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False


def read_notes(run: Path) -> RunNotes:
    """Read the notes of a run; empty notes if there are none or they cannot be read."""
    content = _read_json(run / NOTES_FILE) or {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(RunNotes):
        if field.name in content:
            with contextlib.suppress(msgspec.ValidationError):
                values[field.name] = msgspec.convert(content[field.name], field.type)
    values["tags"] = tuple(normalize_tags(values.get("tags", ())))
    return RunNotes(**values)


def write_notes(run: Path, notes: RunNotes) -> None:
    """Write the notes. Raises `OSError`, also if the run folder does not exist."""
    path = run / NOTES_FILE
    if not run.is_dir():
        raise FileNotFoundError(2, "the run is gone", str(run))
    content = _read_json(path)
    if content is None:
        _move_damaged_aside(path)
    whole = {**(content or {}), **msgspec.to_builtins(notes)}
    files.write_atomic(path, json.dumps(whole, ensure_ascii=False, indent=1).encode("utf-8"))


def parse_tags(text: str) -> tuple[str, ...]:
    """Tags as typed, separated by commas or semicolons, ASCII or Chinese."""
    return tuple(normalize_tags(re.split(f"[{TAG_SEPARATORS}]", text)))


def normalize_tags(tags: Iterable[str]) -> list[str]:
    """Collapse whitespace, drop duplicates (case-insensitive), and limit length and number."""
    found: dict[str, str] = {}
    for tag in tags:
        clean = " ".join(tag.split())[:_MAX_TAG_CHARS].strip()
        if clean:
            found.setdefault(clean.casefold(), clean)
    return list(found.values())[:_MAX_TAGS]


def _read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; empty if there is no file, None if it is damaged."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        found = json.loads(raw.decode("utf-8-sig")) if len(raw) <= _MAX_FILE_BYTES else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _move_damaged_aside(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.replace(path.with_name(f"{NOTES_FILE}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"))
