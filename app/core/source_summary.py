"""Summary of the selected data by file names and sizes, available at once. No Qt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_FILES: Final = 5_000
_TIMEOUT_S: Final = 2.0  # for large folders and slow shares


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """Totals over the user's sources. `more`: not all files were counted."""

    files: int = 0
    bytes: int = 0
    formats: tuple[str, ...] = ()  # of `FORMATS`, most frequent first
    unknown: tuple[str, ...] = ()  # sources of unknown format; in folders such files are skipped
    missing: tuple[str, ...] = ()  # sources that do not exist
    truncated: bool = False

    @property
    def has_problem(self) -> bool:
        """Whether a source does not exist, or contains nothing."""
        return bool(self.missing) or not self.files


def summarize_sources(paths: Sequence[str], *, should_continue: Callable[[], bool] = lambda: True) -> SourceSummary:
    """Read names and sizes. `should_continue` is polled; False returns what was found so far."""
    from trainer_core.data.formats import format_from_name  # 20 ms that would delay the start of the window

    began, counts = time.monotonic(), dict[str, int]()
    files = total = 0
    unknown, missing, more = [], [], False
    for source in paths:
        if not _exists(Path(source)):
            missing.append(source)
            continue
        for path, size in _iter_files(Path(source)):
            if files >= MAX_FILES or time.monotonic() - began > _TIMEOUT_S or not should_continue():
                more = True
                break
            kind, _ = format_from_name(path)
            if kind is not None:
                counts[kind] = counts.get(kind, 0) + 1
            elif path == Path(source):
                unknown.append(source)
            else:
                continue
            files, total = files + 1, total + size
    formats = tuple(sorted(counts, key=lambda kind: -counts[kind]))
    return SourceSummary(files, total, formats, tuple(unknown), tuple(missing), more)


def _exists(source: Path) -> bool:
    """Inaccessible paths count as missing."""
    try:
        source.stat()
    except OSError:
        return False
    return True


def _iter_files(source: Path) -> Iterator[tuple[Path, int]]:
    """Files of a source with sizes in bytes, without hidden and inaccessible ones."""
    if source.is_file():
        yield source, source.stat().st_size
        return
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            try:
                size = path.stat().st_size
            except OSError:
                continue
            if not name.startswith("."):
                yield path, size
