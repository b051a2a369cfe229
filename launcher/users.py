"""Who runs from an environment: its files must not be exchanged below a window or a training."""

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
    """Whether a path is below a folder, by its name alone."""
    return os.path.normcase(path).startswith(os.path.normcase(str(folder) + os.sep))


def users(folder: Path) -> "list[int]":
    """The processes that run from this folder, but for train_gpu.py (this one, and those that wait for it)."""
    return windows_users(folder) if sys.platform == "win32" else posix_users(folder)


def posix_users(folder: Path) -> "list[int]":
    """By their command lines, and by what they have loaded: in an activated shell a command line is just `python`."""
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
def announced() -> "Iterator[None]":
    """While this lasts, our own processes are known for no users: on Windows command lines are hard to come by.

    An open file cannot be deleted there, so one that can be is a dead process's.
    """
    if not WINDOWS:
        yield
        return
    mark = places.KEEP / f"waiting-{os.getppid()}"  # .venv's python.exe only starts the real one, and waits
    with mark.open("wb"):
        yield
    with contextlib.suppress(OSError):
        mark.unlink()


def waiting() -> "set[int]":
    found = {os.getpid(), os.getppid()}
    for mark in places.KEEP.glob("waiting-*"):
        try:
            mark.unlink()
        except OSError:
            found.add(int(mark.name.partition("-")[2]))
    return found


def windows_users(folder: Path) -> "list[int]":
    """By the program that runs: each Python of an environment has a parent that is the environment's python.exe."""
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
        others = set(processes[: size.value // ctypes.sizeof(wintypes.DWORD)]) - waiting()
        for process in sorted(others):
            handle = kernel.OpenProcess(0x1000, False, process)  # PROCESS_QUERY_LIMITED_INFORMATION
            if handle:
                program, length = ctypes.create_unicode_buffer(32768), wintypes.DWORD(32768)
                known = kernel.QueryFullProcessImageNameW(handle, 0, program, ctypes.byref(length))
                kernel.CloseHandle(handle)
                if known and is_in(program.value, folder):
                    found.append(process)
    return found
