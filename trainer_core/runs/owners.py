"""Who owns something on disk: a small file that names a process, and is free again when that process is gone.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trainer_core import files

_READ_RETRY_S: Final = 1.0  # for a file that a virus scanner holds: taken for dead, the work would be done twice
_START_TOLERANCE_S: Final = 2.0  # clocks of /proc and of a written start time differ by a tick or so


@dataclass(frozen=True, slots=True)
class Owner:
    """The process in a lock file. `alive` is False when it is gone or its pid now is another process."""

    pid: int
    started: float
    alive: bool


class InUse(Exception):  # noqa: N818 - callers word it
    """A living process holds the lock."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


def read_owner(path: Path) -> Owner | None:
    """Who holds the lock file at `path`; None if nobody does."""
    try:
        held = json.loads(files.retry_sharing(path.read_bytes, _READ_RETRY_S))
        pid, started = int(held["pid"]), float(held["started"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Owner(0, 0.0, alive=False)
    try:
        process = psutil.Process(pid)
        # One that was killed stays in the list until its parent asks for it, which the first of a container may never.
        alive = abs(process.create_time() - started) < _START_TOLERANCE_S and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # the last two: a damaged number
        alive = False
    return Owner(pid, started, alive)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. Raises `InUse` while a living process holds it, `disk.…` for failed writes."""
    content = json.dumps({"pid": os.getpid(), "started": psutil.Process().create_time()}).encode()
    while not _take(path, content):
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            files.retry_sharing(path.unlink)


def _take(path: Path, content: bytes) -> bool:
    """Write `content` into the lock unless its owner lives. False: it was deleted meanwhile, so try again.

    Looking and writing happen under a lock of the system: else two processes that both find a dead
    owner, or one that is still writing, would both take it.
    """
    with files.said_plainly(path.parent):
        handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "r+b") as file, files.guarded(file):
            owner = read_owner(path)
            if owner is not None and owner.alive:
                raise InUse(owner.pid)
            if os.fstat(file.fileno()).st_nlink == 0:  # asked last: the owner may have let go just now
                return False
            file.write(content)
            file.truncate()
    return True
