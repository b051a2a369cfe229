"""Files that the form names: summary by names, sizes and times. No Qt."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUILTIN_PREFIX: Final = "builtin:"
MAX_FILES: Final = 5_000
_TIMEOUT_S: Final = 2.0  # for large folders and slow shares


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """Totals over the user's sources."""

    files: int = 0
    bytes: int = 0
    formats: tuple[str, ...] = ()  # of `FORMATS`, most frequent first
    unknown: tuple[str, ...] = ()  # sources of unknown format; in folders such files are skipped
    missing: tuple[str, ...] = ()  # sources that do not exist
    truncated: bool = False  # not all files were counted
    modified_ns: int = 0  # newest modification time

    @property
    def has_problem(self) -> bool:
        """Whether a source does not exist, or contains nothing."""
        return bool(self.missing) or not self.files


def summarize_sources(paths: Sequence[str]) -> SourceSummary:
    """Read names and sizes, for at most two seconds."""
    from trainer_core.data.formats import format_from_name  # 20 ms that would delay the start of the window

    deadline, formats = time.monotonic() + _TIMEOUT_S, Counter[str]()
    files = total = modified = 0
    unknown, missing, truncated = [], [], False
    for source in paths:
        try:
            Path(source).stat()
        except OSError:  # inaccessible, too
            missing.append(source)
            continue
        for path, status in _iter_files(Path(source)):
            if files >= MAX_FILES or time.monotonic() > deadline:
                truncated = True
                break
            kind, _ = format_from_name(path)
            if kind is not None:
                formats[kind] += 1
            elif path == Path(source):
                unknown.append(source)
            else:
                continue
            files, total, modified = files + 1, total + status.st_size, max(modified, status.st_mtime_ns)
    by_frequency = tuple(kind for kind, _ in formats.most_common())
    return SourceSummary(files, total, by_frequency, tuple(unknown), tuple(missing), truncated, modified)


def _iter_files(source: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of a source with their status, without hidden and inaccessible ones."""
    if source.is_file():
        yield source, source.stat()
        return
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                with contextlib.suppress(OSError):
                    yield (path := Path(folder, name)), path.stat()


def inspect_tokenizer(paths: Sequence[str]) -> SourceSummary:
    """Summary of the first path: missing unless it is a file, or a folder with a tokenizer.json."""
    try:
        path = Path(paths[0]).expanduser()
        exists = (path / "tokenizer.json" if path.is_dir() else path).is_file()
    except (OSError, RuntimeError, ValueError):  # no permission; unknown home folder; invalid character
        exists = False
    return SourceSummary(files=1) if exists else SourceSummary(missing=(paths[0],))
