"""What chosen files seem to be, by their names and sizes: known at once, where a real look takes seconds. No Qt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_FILES: Final = 5_000
_PATIENCE_S: Final = 2.0  # for folders with more files than one can count quickly, and for slow shares


@dataclass(frozen=True, slots=True)
class Glance:
    """Sums over all own sources. `more`: there are further files, which were not counted."""

    files: int = 0
    bytes: int = 0
    formats: tuple[str, ...] = ()  # of `FORMATS`, the most frequent first
    unknown: tuple[str, ...] = ()  # sources whose name tells no format; in a folder such files are left out
    missing: tuple[str, ...] = ()  # sources that are not there
    more: bool = False

    @property
    def useless(self) -> bool:
        """Whether something is not there, or nothing at all is."""
        return bool(self.missing) or not self.files


def glance(paths: Sequence[str], *, wanted: Callable[[], bool] = lambda: True) -> Glance:
    """Look at names and sizes. `wanted`: asked now and then whether to go on; what was found by then comes back."""
    from trainer_core.data.formats import named  # 20 ms that no start of the window needs to wait for

    began, counts = time.monotonic(), dict[str, int]()
    files = total = 0
    unknown, missing, more = [], [], False
    for source in paths:
        if not _is_there(Path(source)):
            missing.append(source)
            continue
        for path, size in _files(Path(source)):
            if files >= MOST_FILES or time.monotonic() - began > _PATIENCE_S or not wanted():
                more = True
                break
            kind, _ = named(path)
            if kind is not None:
                counts[kind] = counts.get(kind, 0) + 1
            elif path == Path(source):
                unknown.append(source)
            else:
                continue
            files, total = files + 1, total + size
    formats = tuple(sorted(counts, key=lambda kind: -counts[kind]))
    return Glance(files, total, formats, tuple(unknown), tuple(missing), more)


def _is_there(source: Path) -> bool:
    """What may not be looked at cannot be trained on either."""
    try:
        source.stat()
    except OSError:
        return False
    return True


def _files(source: Path) -> Iterator[tuple[Path, int]]:
    """The files of a source with their sizes in bytes; hidden ones and what cannot be read are passed over."""
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
