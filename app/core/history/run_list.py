"""List of the runs on disk, and reader of their events. Both work in slices that fit an event loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.history import run_notes
from app.core.history.run_notes import NOTES_FILE, RunNotes
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir, RunSummary

_CHUNK_BYTES: Final = 256 * 1024
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
_Stamp = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and its notes."""

    run: RunSummary
    notes: RunNotes

    @property
    def path(self) -> Path:
        return self.run.path


class RunHistory:
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
            with contextlib.suppress(OSError):  # deleted in the meantime
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


class EventReader:
    """Reads the events of a run in slices: call `read` until `finished`."""

    def __init__(self, run_path: Path) -> None:
        path = RunDir(run_path).events
        self.finished = False
        self._remainder = b""
        self._bytes_read = 0
        try:
            self._size = path.stat().st_size
            self._file = path.open("rb")
        except OSError:
            self._size, self.finished = 0, True

    @property
    def fraction(self) -> float:
        """Fraction of the file that has been read, 0..1."""
        return 1.0 if self.finished or not self._size else min(1.0, self._bytes_read / self._size)

    def read(self, budget_s: float = 0.01) -> list[AnyEvent]:
        """The events of at least one chunk, and of more within `budget_s` seconds. Invalid lines are skipped."""
        found: list[AnyEvent] = []
        deadline = time.perf_counter() + budget_s
        while not self.finished:
            found += self._read_chunk()
            if time.perf_counter() >= deadline:
                break
        return found

    def _read_chunk(self) -> list[AnyEvent]:
        try:
            chunk = self._file.read(_CHUNK_BYTES)
        except OSError:
            chunk = b""
        self._bytes_read += len(chunk)
        lines = (self._remainder + chunk).split(b"\n")
        self._remainder = lines.pop()
        if not chunk:  # end of file: the last event may lack its newline
            lines.append(self._remainder)
            self.close()
        elif len(self._remainder) > _MAX_LINE_BYTES:
            self._remainder = b"#"  # too long for an event: skip the rest of the line
        return [event for event in map(_decode_or_none, lines) if event is not None]

    def close(self) -> None:
        """Close the file."""
        if not self.finished:
            self.finished = True
            self._file.close()


def _decode_or_none(line: bytes) -> AnyEvent | None:
    if not line:
        return None
    try:
        return protocol.decode_event(line)
    except protocol.ProtocolError:
        return None
