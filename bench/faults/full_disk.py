"""The trainer on a disk that becomes full.

    python -m bench.faults.full_disk FOLDER OPERATION FREE_SPACE_FILE train …

Counts operations below FOLDER: make, open for writing, write, flush, rename. The disk is full from number OPERATION on
until FREE_SPACE_FILE exists; half of a write is done. Reports the first operation that fails on stderr.
"""

import builtins
import errno
import io
import os
import runpy
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

REPORT: Final = "disk full at operation"
_OPERATIONS: Final = {"os.mkdir": "make", "os.rename": "rename"}  # by audit event
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FullDisk:
    """Counts operations, and fails them while the disk is full."""

    def __init__(self, folder: str, operation: str, free_space_file: str) -> None:
        self._folder, self._first_failure = os.path.normcase(folder), int(operation)
        self._free_space_file = Path(free_space_file)
        self._count, self._lock, self._reported = 0, threading.Lock(), False

    @property
    def is_full(self) -> bool:
        return self._count >= self._first_failure and not self._free_space_file.exists()

    def contains(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.normcase(Path.cwd() / path).startswith(self._folder)

    def count(self, operation: str, path: Any, do_half: Callable[[], object] = lambda: None) -> None:
        """Count an operation before it is done. Raises `OSError` if the disk is full."""
        with self._lock:
            self._count += 1
            number = self._count
        if self.is_full:
            do_half()
            if not self._reported:
                self._reported = True
                os.write(2, os.fsencode(f"{REPORT} {number}: {operation} {Path(path).name}\n"))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        operation = "open" if writes else _OPERATIONS.get(event)
        if operation and self.contains(arguments[0]):
            self.count(operation, arguments[0])


def install(disk: FullDisk) -> None:
    """Replace the functions of Python that write files and read free space."""
    real_open, real_fsync, real_disk_usage = io.open, os.fsync, shutil.disk_usage

    class CountedFile(io.FileIO):
        def write(self, content: Any) -> int:
            view = memoryview(content).cast("B")
            disk.count("write", self.name, lambda: super(CountedFile, self).write(view[: len(view) // 2]))
            return super().write(view)

    def counted_open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+") or not disk.contains(file):
            return real_open(file, mode, buffering, *args, **kwargs)
        raw = CountedFile(file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)

    def counted_fsync(fd: Any) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        if path.is_symlink() and disk.contains(path.readlink()):  # Linux
            disk.count("flush", path.readlink())
        real_fsync(fd)

    def disk_usage(path: Any) -> Any:
        usage = real_disk_usage(path)
        return usage._replace(free=0) if disk.is_full and disk.contains(path) else usage

    io.open = builtins.open = counted_open
    os.fsync, shutil.disk_usage = counted_fsync, disk_usage
    sys.addaudithook(disk.on_audit_event)


if __name__ == "__main__":
    install(FullDisk(*sys.argv[1:4]))
    sys.argv = ["trainer_core", *sys.argv[4:]]
    runpy.run_module("trainer_core", run_name="__main__", alter_sys=True)
