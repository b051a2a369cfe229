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


class Harm:
    """What is broken, and how far it is."""

    def __init__(self, below: str = "", full_at: int = 0, room: str = "") -> None:
        self._below, self._full_at, self._room = os.path.normcase(below), full_at, room
        self._count, self._lock, self._inside = 0, threading.Lock(), threading.local()
        self._said = False

    def concerns(self, path: Any) -> bool:
        if not self._below or not isinstance(path, str | os.PathLike):
            return False
        return os.path.normcase(Path.cwd() / path).startswith(self._below)

    def now(self, what: str, path: Any, half: Callable[[], object] | None = None) -> None:
        """An operation is about to be done. `half`: does half of it. Raises `OSError` while the disk is full."""
        with self._lock:
            self._count += 1
            number = self._count
        if self._full_at and number >= self._full_at and not Path(self._room).exists() and "remove" not in what:
            if half is not None:
                half()
            if not self._said:
                self._said = True
                _say(f"full at operation {number}: {what} {Path(path).name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    @property
    def full(self) -> bool:
        return bool(self._full_at) and self._count >= self._full_at and not Path(self._room).exists()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: Python tells what it is about to do."""
        if event in _CHANGES:
            what, path = _CHANGES[event], arguments[0]
            if event in ("os.remove", "os.rmdir") and arguments[1] not in (None, -1):  # relative to an open folder
                path = _path_of(arguments[1]) / path
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            what, path = "open", arguments[0]
        else:
            return
        if self.concerns(path):
            self.now(what, path)


class _Raw(io.FileIO):
    """A file whose writes are counted, and end in the middle when something is broken."""

    harm: Harm

    def write(self, content: _Buffer) -> int:  # type: ignore[override]
        view = memoryview(content).cast("B")
        self.harm.now("write", self.name, lambda: super(_Raw, self).write(view[: len(view) // 2]))
        return super().write(view)


def _break_files(harm: Harm) -> None:
    """Every file that Python opens for writing below the folder is one of those above."""
    real_open, real_fsync, real_usage = io.open, os.fsync, shutil.disk_usage
    _Raw.harm = harm

    def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not harm.concerns(file):
            return real_open(file, mode, buffering, *more, **named)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **named)

    def flushed(fd: Any) -> None:
        path = _path_of(fd)
        if harm.concerns(path):
            harm.now("flush", path)
        real_fsync(fd)

    def usage(path: Any) -> Any:
        real = real_usage(path)
        return real._replace(free=0) if harm.full and harm.concerns(path) else real

    io.open, builtins.open, os.fsync, shutil.disk_usage = opened, opened, flushed, usage
    sys.addaudithook(harm.hear)


def _path_of(descriptor: int) -> Path:
    """What an open file is called; empty where nobody knows (not Linux)."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return Path()


def _break_clock(jumps: list[list[int]]) -> None:
    """`time.time` jumps; nothing else of the system is touched."""
    real, looks = time.time, itertools.count(1)

    def told() -> float:
        look = next(looks)
        return real() + sum(by for after, by in jumps if look >= after)

    time.time = told


def _say(words: str) -> None:
    os.write(2, f"{words}\n".encode("utf-8", "backslashreplace"))


def main() -> None:
    wanted = json.loads(sys.argv.pop(1))
    _break_clock(wanted.pop("clock", []))
    _break_files(Harm(**wanted))
    sys.argv[0] = "trainer_core"
    runpy.run_module("trainer_core", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
