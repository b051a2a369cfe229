"""The trainer with an injected fault.

    python -m bench.faults.harmed '{"below": "RUN", "full_at": 17, "room": "FILE"}' train …
    python -m bench.faults.harmed '{"clock": [[20, -3600]]}' train …

Operations that change files below a folder (make, open for writing, write, flush, rename, remove) are counted. From
one of them on the disk is full until the file `room` exists; half of a write is done. `clock`: after so many reads, the
clock jumps by so many seconds. stderr reports what happened.
"""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import json
import os
import runpy
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_CHANGES: Final = {"os.mkdir": "make", "os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove folder"}
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_Buffer = bytes | bytearray | memoryview


class DiskFault:
    """A disk that is full from an operation on."""

    def __init__(self, below: str = "", full_at: int = 0, room: str = "") -> None:
        self._below, self._full_at, self._room = os.path.normcase(below), full_at, room
        self._count, self._lock, self._inside = 0, threading.Lock(), threading.local()
        self._reported = False

    def applies_to(self, path: Any) -> bool:
        if not self._below or not isinstance(path, str | os.PathLike):
            return False
        return os.path.normcase(Path.cwd() / path).startswith(self._below)

    def count(self, what: str, path: Any, half: Callable[[], object] | None = None) -> None:
        """Count an operation before it is done. `half`: does half of it. Raises `OSError` while the disk is full."""
        with self._lock:
            self._count += 1
            number = self._count
        if self._full_at and number >= self._full_at and not Path(self._room).exists() and "remove" not in what:
            if half is not None:
                half()
            if not self._reported:
                self._reported = True
                _report(f"full at operation {number}: {what} {Path(path).name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    @property
    def full(self) -> bool:
        return bool(self._full_at) and self._count >= self._full_at and not Path(self._room).exists()

    def on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook for changes of folders."""
        if event in _CHANGES:
            what, path = _CHANGES[event], arguments[0]
            if event in ("os.remove", "os.rmdir") and arguments[1] not in (None, -1):  # relative to an open folder
                path = _path_of(arguments[1]) / path
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            what, path = "open", arguments[0]
        else:
            return
        if self.applies_to(path):
            self.count(what, path)


class _Raw(io.FileIO):
    """A file whose writes are counted; on a full disk half of a write is done."""

    fault: DiskFault

    def write(self, content: _Buffer) -> int:  # type: ignore[override]
        view = memoryview(content).cast("B")
        self.fault.count("write", self.name, lambda: super(_Raw, self).write(view[: len(view) // 2]))
        return super().write(view)


def _break_files(fault: DiskFault) -> None:
    """Replace the files that Python opens for writing below the folder."""
    real_open, real_fsync, real_usage = io.open, os.fsync, shutil.disk_usage
    _Raw.fault = fault

    def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not fault.applies_to(file):
            return real_open(file, mode, buffering, *more, **named)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **named)

    def flushed(fd: Any) -> None:
        path = _path_of(fd)
        if fault.applies_to(path):
            fault.count("flush", path)
        real_fsync(fd)

    def usage(path: Any) -> Any:
        real = real_usage(path)
        return real._replace(free=0) if fault.full and fault.applies_to(path) else real

    io.open, builtins.open, os.fsync, shutil.disk_usage = opened, opened, flushed, usage
    sys.addaudithook(fault.on_audit_event)


def _path_of(descriptor: int) -> Path:
    """Path of an open file; empty if unknown (not Linux)."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return Path()


def _break_clock(jumps: list[list[int]]) -> None:
    """Let `time.time` jump."""
    real, reads = time.time, itertools.count(1)

    def now() -> float:
        read = next(reads)
        return real() + sum(seconds for after, seconds in jumps if read >= after)

    time.time = now


def _report(words: str) -> None:
    os.write(2, f"{words}\n".encode("utf-8", "backslashreplace"))


def main() -> None:
    faults = json.loads(sys.argv.pop(1))
    _break_clock(faults.pop("clock", []))
    _break_files(DiskFault(**faults))
    sys.argv[0] = "trainer_core"
    runpy.run_module("trainer_core", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
