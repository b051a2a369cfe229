"""List of the runs on disk, and their events. Both are read in slices that fit an event loop."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.history import run_notes
from app.core.history.run_notes import NOTES_FILE, RunNotes
from trainer_core.protocol import AnyEvent
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir, RunSummary

_CHUNK_LINES: Final = 256
_MAX_LINE_BYTES: Final = 1024 * 1024  # longer than any event
_Stamp = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and its notes."""

    run: RunSummary
    notes: RunNotes

    @property
    def path(self) -> Path:
        return self.run.path


class RunList:
    """Runs in a folder. A run is read again only if its files or its owner have changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[Path, tuple[_Stamp, RunRow]] = {}

    @property
    def rows(self) -> list[RunRow]:
        """Runs that the last refresh found, newest first."""
        return sorted((row for _, row in self._cache.values()), key=lambda row: row.run.started, reverse=True)

    @property
    def runs(self) -> list[RunSummary]:
        """Like `rows`, without notes."""
        return [row.run for row in self.rows]

    def refresh(self) -> list[RunSummary]:
        """Read changed runs, which takes a few ms each; see `iter_refresh`."""
        for _ in self.iter_refresh():
            pass
        return self.runs

    def iter_refresh(self) -> Iterator[None]:
        """Like `refresh`, one run per iteration."""
        paths = self._run_paths()
        for missing in self._cache.keys() - set(paths):
            self.forget(missing)
        for path in paths:
            if RunDir(path).exists():  # not deleted in the meantime
                self._refresh_run(RunDir(path))
                yield

    def get(self, path: Path) -> RunSummary | None:
        """Read one run; None if it does not exist."""
        run = RunDir(path)
        return self._refresh_run(run).run if run.exists() else None

    def forget(self, path: Path) -> None:
        """Remove a run that was deleted or renamed."""
        self._cache.pop(path, None)

    def notes(self, path: Path) -> RunNotes:
        """Notes of a run, as of the last refresh."""
        return self._cache[path][1].notes if path in self._cache else RunNotes()

    def set_notes(self, path: Path, notes: RunNotes) -> None:
        """Write notes to the run folder. Raises `OSError`."""
        run_notes.write_notes(path, notes)
        self._refresh_run(RunDir(path))

    def _run_paths(self) -> list[Path]:
        try:
            return [entry for entry in self.root.iterdir() if RunDir(entry).exists()]
        except OSError:
            return []

    def _refresh_run(self, run: RunDir) -> RunRow:
        stamp, cached = _run_stamp(run), self._cache.get(run.path)
        if cached is None or cached[0] != stamp:
            cached = (stamp, RunRow(run_dir.summarize(run), run_notes.read_notes(run.path)))
            self._cache[run.path] = cached
        return cached[1]


def _run_stamp(run: RunDir) -> _Stamp:
    """Everything that a row depends on. The owner may exit without changing a file."""
    owner = file_locks.read_owner(run.lock)
    files = (_file_stamp(path) for path in (run.events, run.config, run.checkpoints, run.path / NOTES_FILE))
    return (*files, owner is not None and owner.alive)


def _file_stamp(path: Path) -> tuple[int, int]:
    """Modification time in ns, size in bytes; zeros if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


def read_events(run: Path) -> Iterator[tuple[list[AnyEvent], float]]:
    """The events of a run in chunks that take a few ms, each with the fraction of the file that has been read, 0..1.

    Invalid lines are skipped.
    """
    with contextlib.suppress(OSError), RunDir(run).events.open("rb") as file:
        size = max(1, os.fstat(file.fileno()).st_size)
        lines = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
        while chunk := list(itertools.islice(lines, _CHUNK_LINES)):
            yield list(run_dir.decode_events(chunk)), min(1.0, file.tell() / size)
