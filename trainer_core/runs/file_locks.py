"""Lock files that name their owner; released when the owner exits.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trainer_core.system import files

_READ_RETRY_S: Final = 1.0  # while a virus scanner holds the file
_WAIT_S: Final = 0.2
_START_TOLERANCE_S: Final = 2.0  # start times of /proc are rounded to ticks


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process in a lock file. `alive` is False if it has exited; its PID may be reused."""

    pid: int
    started: float
    alive: bool


class LockHeldError(Exception):
    """A running process holds the lock."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


def read_owner(path: Path) -> LockOwner | None:
    """Owner of the lock file at `path`; None if it does not exist."""
    try:
        held = json.loads(files.retry_sharing_violation(path.read_bytes, _READ_RETRY_S))
        pid, started = int(held["pid"]), float(held["started"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return LockOwner(0, 0.0, alive=False)
    return LockOwner(pid, started, is_alive(pid, started))


def is_alive(pid: int, started: float) -> bool:
    """Whether the process with this PID and start time (seconds since 1970) is running."""
    try:
        process = psutil.Process(pid)
        # A killed process is a zombie until its parent waits for it, which PID 1 of a container may never do.
        return abs(process.create_time() - started) < _START_TOLERANCE_S and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # the last two: a damaged number
        return False


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. Raises `LockHeldError` while a running process holds it, `disk.…`."""
    content = json.dumps({"pid": os.getpid(), "started": psutil.Process().create_time()}).encode()
    while not _acquire(path, content):
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            files.retry_sharing_violation(path.unlink)


@contextlib.contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, once no other process does. Raises `disk.…`."""
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(file_lock(path))
                break
            except LockHeldError:
                time.sleep(_WAIT_S)
        yield


def _acquire(path: Path, content: bytes) -> bool:
    """Write `content` into the lock unless its owner is running. False: it was deleted meanwhile; try again.

    A system lock makes reading and writing atomic, so that only one process can replace an exited owner.
    """
    with files.translate_os_errors(path.parent):
        handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "r+b") as file, files.os_lock(file):
            owner = read_owner(path)
            if owner is not None and owner.alive:
                raise LockHeldError(owner.pid)
            if os.fstat(file.fileno()).st_nlink == 0:  # checked last: the owner may have just released it
                return False
            file.write(content)
            file.truncate()
    return True
