"""What a person says of a run: a note, tags, whether it is archived. Kept as JSON in the run's own folder.

A damaged file never hides a run, and is put aside rather than overwritten. A value of the wrong type costs that value
only; what a later Traindeck wrote beside ours stays.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_core import files

FILE: Final = "notes.json"
_LARGEST: Final = 1024 * 1024  # bytes
_LONGEST_TAG: Final = 40  # characters
_MOST_TAGS: Final = 30


class RunNotes(msgspec.Struct, frozen=True, kw_only=True):
    """To keep more, add a field with a default."""

    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False


def read(run: Path) -> RunNotes:
    """What the folder of a run holds; nothing where it holds none that can be read."""
    content = _content(run / FILE) or {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(RunNotes):
        if field.name in content:
            with contextlib.suppress(msgspec.ValidationError):
                values[field.name] = msgspec.convert(content[field.name], field.type)
    values["tags"] = tuple(tidy(values.get("tags", ())))
    return RunNotes(**values)


def write(run: Path, notes: RunNotes) -> None:
    """Keep it. Raises `OSError`, also where the run is gone: a note makes no folder."""
    path = run / FILE
    if not run.is_dir():
        raise FileNotFoundError(2, "the run is gone", str(run))
    content = _content(path)
    if content is None:
        _put_aside(path)
    whole = {**(content or {}), **msgspec.to_builtins(notes)}
    files.write_atomic(path, json.dumps(whole, ensure_ascii=False, indent=1).encode("utf-8"))


def stamp(run: Path) -> tuple[int, int]:
    """Changes whenever the notes do."""
    try:
        found = (run / FILE).stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def parse_tags(text: str) -> tuple[str, ...]:
    """Tags as they are typed: divided by commas, Chinese ones too."""
    return tuple(tidy(text.replace("，", ",").replace("、", ",").replace(";", ",").replace("；", ",").split(",")))


def tidy(tags: Iterable[str]) -> list[str]:
    """Without blanks around them, each once (whatever its capitals), and not too many."""
    found: dict[str, str] = {}
    for tag in tags:
        clean = " ".join(tag.split())[:_LONGEST_TAG].strip()
        if clean:
            found.setdefault(clean.casefold(), clean)
    return list(found.values())[:_MOST_TAGS]


def _content(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; empty where there is no file, None where it is damaged."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        found = json.loads(raw.decode("utf-8-sig")) if len(raw) <= _LARGEST else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _put_aside(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.replace(path.with_name(f"{FILE}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"))
