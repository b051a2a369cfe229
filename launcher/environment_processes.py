"""Finds processes that run from a virtual environment, whose files must not be replaced while it is in use."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher import places
from launcher.places import WINDOWS

PROC = Path("/proc")
MAX_PROCESSES = 16384  # K32EnumProcesses returns no more than fit into the array
PROCESS_QUERY_LIMITED_INFORMATION = 0x1000


def is_in(path: str, folder: Path) -> bool:
    """Return whether a path is below a folder, by comparing text, without resolving links."""
    return os.path.normcase(path).startswith(os.path.normcase(str(folder) + os.sep))


def processes_using(folder: Path) -> "list[int]":
    """Return the PIDs of processes that run from this folder, other than setups.

    On Linux this leaves out every process with train_gpu.py in its arguments; on Windows this process and those inside
    `setup_process_marker`. Empty on other systems.
    """
    return windows_processes_using(folder) if sys.platform == "win32" else linux_processes_using(folder)


def linux_processes_using(folder: Path) -> "list[int]":
    """Search /proc by command line and by loaded files: in an activated shell the command line is only `python`."""
    found = []
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
            if str(places.ROOT / "train_gpu.py") in command:
                continue
            cwd = os.readlink(str(process / "cwd"))  # noqa: PTH115  Path.readlink came with Python 3.9
            program = str(Path(cwd) / command[0])
            loaded = (process / "maps").read_bytes()
            if is_in(program, folder) or b" " + os.fsencode(str(folder)) + b"/" in loaded:
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def setup_process_marker() -> "Iterator[None]":
    """Exclude this process from `processes_using` of others while it waits for the setup lock or holds it, on Windows.
    The marker is an open file."""
    if not WINDOWS:
        yield
        return
    # .venv's python.exe is a redirector: it starts the real interpreter as its child. Only the parent runs from .venv.
    marker = places.STATE_FOLDER / f"waiting-{os.getppid()}"
    with marker.open("wb"):
        yield
    with contextlib.suppress(OSError):
        marker.unlink()


def setup_pids() -> "set[int]":
    """Return the PIDs of this process, its parent and the processes with a marker. Deletes markers left behind."""
    found = {os.getpid(), os.getppid()}
    for marker in places.STATE_FOLDER.glob("waiting-*"):
        try:
            marker.unlink()  # Windows deletes no open file. If this succeeds, the process of the marker has exited.
        except OSError:
            found.add(int(marker.name.partition("-")[2]))
    return found


def windows_processes_using(folder: Path) -> "list[int]":
    """Search by executable. The parent of each Python of an environment is the environment's python.exe."""
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
        processes, size = (wintypes.DWORD * MAX_PROCESSES)(), wintypes.DWORD()
        kernel.K32EnumProcesses(processes, ctypes.sizeof(processes), ctypes.byref(size))
        others = set(processes[: size.value // ctypes.sizeof(wintypes.DWORD)]) - setup_pids()
        for process in sorted(others):
            handle = kernel.OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, False, process)
            if handle:
                program, length = ctypes.create_unicode_buffer(32768), wintypes.DWORD(32768)
                known = kernel.QueryFullProcessImageNameW(handle, 0, program, ctypes.byref(length))
                kernel.CloseHandle(handle)
                if known and is_in(program.value, folder):
                    found.append(process)
    return found
