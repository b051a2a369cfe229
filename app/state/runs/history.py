"""Earlier runs on disk: a list that is cheap to refresh, and their events to plot again.

Reading is cut into slices, so that a window can do it from a timer without standing still.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.state.runs import run_notes
from app.state.runs.run_notes import RunNotes
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir, RunSummary

LONG_BYTES: Final = 16 * 1024 * 1024
_CHUNK: Final = 256 * 1024
_LONGEST_LINE: Final = 4 * 1024 * 1024
_Stamp = tuple[object, ...]


class History:
    """The runs below a folder. A run whose files and owner did not change is not read again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[Path, tuple[_Stamp, RunSummary]] = {}
        self._notes: dict[Path, tuple[_Stamp, RunNotes]] = {}

    @property
    def runs(self) -> list[RunSummary]:
        """What the last refresh found, newest first."""
        return sorted((summary for _, summary in self._cache.values()), key=lambda run: run.started, reverse=True)

    def refresh(self) -> list[RunSummary]:
        """Look at the disk now. Takes a few ms for each run that changed; see `refresh_in_slices`."""
        for _ in self.refresh_in_slices():
            pass
        return self.runs

    def refresh_in_slices(self) -> Iterator[RunSummary]:
        """The same, one run at each `next`; `runs` is complete at the end."""
        paths = self._run_paths()
        for gone in self._cache.keys() - set(paths):
            self._cache.pop(gone)
            self._notes.pop(gone, None)
        for path in paths:
            with contextlib.suppress(OSError):  # deleted meanwhile
                self._look_at_notes(path)
                yield self._summary(RunDir(path))

    def get(self, path: Path) -> RunSummary | None:
        """One run as it is now; None where there is none."""
        run = RunDir(path)
        if not run.exists():
            return None
        self._look_at_notes(path)
        return self._summary(run)

    def forget(self, path: Path) -> None:
        """Its folder is gone, or has another name."""
        self._cache.pop(path, None)
        self._notes.pop(path, None)

    def notes(self, path: Path) -> RunNotes:
        """What is noted of a run, as the last refresh found it."""
        known = self._notes.get(path)
        return known[1] if known is not None else RunNotes()

    def note(self, path: Path, notes: RunNotes) -> None:
        """Keep notes in the run's folder. Raises `OSError`."""
        run_notes.write(path, notes)
        self._notes[path] = (run_notes.stamp(path), notes)

    def _look_at_notes(self, path: Path) -> None:
        stamp, known = run_notes.stamp(path), self._notes.get(path)
        if known is None or known[0] != stamp:
            self._notes[path] = (stamp, run_notes.read(path))

    def _run_paths(self) -> list[Path]:
        try:
            return [entry for entry in self.root.iterdir() if RunDir(entry).exists()]
        except OSError:
            return []

    def _summary(self, run: RunDir) -> RunSummary:
        stamp = _stamp(run)
        known = self._cache.get(run.path)
        if known is None or known[0] != stamp:
            known = (stamp, run_dir.summarize(run))
            self._cache[run.path] = known
        return known[1]


def _stamp(run: RunDir) -> _Stamp:
    """What a summary depends on. The owner is asked each time: it can die without touching a file."""
    owner = run_dir.read_owner(run)
    files = (_file_stamp(path) for path in (run.events, run.config, run.checkpoints))
    return (*files, owner is not None and owner.alive)


def _file_stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def is_long(run_path: Path) -> bool:
    """Whether so much was told of a run that its events are better read by other processes: see `digest.py`."""
    return _file_stamp(RunDir(run_path).events)[1] >= LONG_BYTES


def load_events(run_path: Path) -> Iterator[AnyEvent]:
    """All events of a run in order, read in bounded chunks; lines that are no events are passed over."""
    loader = EventLoader(run_path)
    while not loader.finished:
        yield from loader.read(budget_s=0.0)
    loader.close()


class EventLoader:
    """Reads `events.jsonl` in slices: call `read` from a timer until `finished`."""

    def __init__(self, run_path: Path) -> None:
        path = RunDir(run_path).events
        self.finished = False
        self._rest = b""
        self._done = 0
        try:
            self._size = path.stat().st_size
            self._file = path.open("rb")
        except OSError:
            self._size, self.finished = 0, True

    @property
    def fraction(self) -> float:
        """How much of the file has been read, 0..1."""
        return 1.0 if self.finished or not self._size else min(1.0, self._done / self._size)

    def read(self, budget_s: float = 0.01) -> list[AnyEvent]:
        """The next events: at least one chunk, more while `budget_s` lasts."""
        found: list[AnyEvent] = []
        deadline = time.perf_counter() + budget_s
        while not self.finished:
            found += self._chunk()
            if time.perf_counter() >= deadline:
                break
        return found

    def _chunk(self) -> list[AnyEvent]:
        try:
            chunk = self._file.read(_CHUNK)
        except OSError:
            chunk = b""
        self._done += len(chunk)
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if not chunk:  # the end: a whole event may stand there without its newline
            lines.append(self._rest)
            self.close()
        elif len(self._rest) > _LONGEST_LINE:
            self._rest = b"#"  # no event is that long: what follows up to the newline is no event either
        return [event for event in map(_decoded, lines) if event is not None]

    def close(self) -> None:
        """Let go of the file; what was not read stays unread."""
        if not self.finished:
            self.finished = True
            self._file.close()


def _decoded(line: bytes) -> AnyEvent | None:
    if not line:
        return None
    try:
        return protocol.decode_event(line)
    except protocol.ProtocolError:
        return None
