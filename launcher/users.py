"""Finds processes that run from an environment: its files must not be replaced meanwhile."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher import places
from launcher.places import WINDOWS

PROC = Path("/proc")


def is_in(path: str, folder: Path) -> bool:
    """Whether a path is below a folder, by its text."""
    return os.path.normcase(path).startswith(os.path.normcase(str(folder) + os.sep))


def processes_using(folder: Path) -> "list[int]":
    """PIDs of processes that run from this folder, except train_gpu.py (this one and those that wait for the lock)."""
    return windows_processes_using(folder) if sys.platform == "win32" else posix_processes_using(folder)


def posix_processes_using(folder: Path) -> "list[int]":
    """By command line and by loaded libraries: in an activated shell a command line is only `python`."""
    found = []
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
            if str(places.ROOT / "train_gpu.py") in command:
                continue
            started_in = os.readlink(str(process / "cwd"))  # noqa: PTH115  Path.readlink came with Python 3.9
            program = str(Path(started_in) / command[0])
            loaded = (process / "maps").read_bytes()
            if is_in(program, folder) or b" " + os.fsencode(str(folder)) + b"/" in loaded:
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def waiting_marker() -> "Iterator[None]":
    """Exclude this process from `processes_using` of others inside the context, on Windows.

    There an open file cannot be deleted: a marker that can be is of a process that has exited.
    """
    if not WINDOWS:
        yield
        return
    mark = places.STATE_FOLDER / f"waiting-{os.getppid()}"  # .venv's python.exe is only the parent of the real one
    with mark.open("wb"):
        yield
    with contextlib.suppress(OSError):
        mark.unlink()


def waiting_pids() -> "set[int]":
    found = {os.getpid(), os.getppid()}
    for mark in places.STATE_FOLDER.glob("waiting-*"):
        try:
            mark.unlink()
        except OSError:
            found.add(int(mark.name.partition("-")[2]))
    return found


def windows_processes_using(folder: Path) -> "list[int]":
    """By executable: each Python of an environment has the environment's python.exe as its parent."""
    found: list[int] = []
    if sys.platform == "win32":
        from ctypes import wintypes

        kernel = ctypes.windll.kernel32
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.QueryFullProcessImageNameW.argtypes = (
            wintypes.HANDLE,
            wintypes.DWORD,
            ctypes.c_wchar_p,
            ctypes.c_void_p,
        )
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        processes, size = (wintypes.DWORD * 16384)(), wintypes.DWORD()
        kernel.K32EnumProcesses(processes, ctypes.sizeof(processes), ctypes.byref(size))
        others = set(processes[: size.value // ctypes.sizeof(wintypes.DWORD)]) - waiting_pids()
        for process in sorted(others):
            handle = kernel.OpenProcess(0x1000, False, process)  # PROCESS_QUERY_LIMITED_INFORMATION
            if handle:
                program, length = ctypes.create_unicode_buffer(32768), wintypes.DWORD(32768)
                known = kernel.QueryFullProcessImageNameW(handle, 0, program, ctypes.byref(length))
                kernel.CloseHandle(handle)
                if known and is_in(program.value, folder):
                    found.append(process)
    return found
