"""Programs that run from an environment, and the lock that allows one setup at a time."""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from launcher import places
from launcher.messages import SetupError, message, print_and_log
from launcher.places import WINDOWS

PROC = Path("/proc")
MAX_PROCESSES = 16384  # K32EnumProcesses returns no more than fit into the array
PROCESS_QUERY_LIMITED_INFORMATION = 0x1000


def processes_using(folder: Path) -> "list[int]":
    """Return the PIDs of processes that run from this folder, other than setups.

    On Linux this leaves out every process with train_gpu.py in its arguments; on Windows this process and those inside
    `setup_lock`. Empty on other systems.
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
            program, loaded = Path(cwd) / command[0], (process / "maps").read_bytes()
            if folder in program.parents or b" " + os.fsencode(str(folder)) + b"/" in loaded:
                found.append(int(process.name))
    return found


def windows_processes_using(folder: Path) -> "list[int]":
    """Search by executable. The parent of each Python of an environment is the environment's python.exe."""
    found: list[int] = []
    if sys.platform == "win32":
        from ctypes import wintypes

        kernel = ctypes.windll.kernel32
        processes, size = (wintypes.DWORD * MAX_PROCESSES)(), wintypes.DWORD()
        kernel.K32EnumProcesses(processes, ctypes.sizeof(processes), ctypes.byref(size))
        others = set(processes[: size.value // ctypes.sizeof(wintypes.DWORD)]) - setup_pids()
        for process in sorted(others):
            handle = wintypes.HANDLE(kernel.OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, False, process))
            if handle:
                program, length = ctypes.create_unicode_buffer(32768), wintypes.DWORD(32768)
                known = kernel.QueryFullProcessImageNameW(handle, 0, program, ctypes.byref(length))
                kernel.CloseHandle(handle)
                if known and folder in Path(program.value).parents:
                    found.append(process)
    return found


def setup_pids() -> "set[int]":
    """On Windows, the PIDs of this process, its parent and the processes with a marker of `setup_lock`."""
    found = {os.getpid(), os.getppid()}
    for marker in places.STATE_FOLDER.glob("waiting-*"):
        try:
            marker.unlink()  # Windows deletes no open file. If this succeeds, the process of the marker has exited.
        except OSError:
            found.add(int(marker.name.partition("-")[2]))
    return found


@contextlib.contextmanager
def setup_lock() -> "Iterator[None]":
    """Hold the setup lock; the system releases it when its owner exits."""
    places.STATE_FOLDER.mkdir(exist_ok=True)
    # .venv's python.exe is a redirector: it starts the real interpreter as its child. Only the parent runs from .venv.
    marker = places.STATE_FOLDER / f"waiting-{os.getppid()}"
    try:
        with marker.open("wb"), (places.STATE_FOLDER / "lock").open("ab") as file:
            if not try_lock(file.fileno()):
                print_and_log(message("launcher.waiting_for_setup"))
                while not try_lock(file.fileno()):
                    time.sleep(0.5)
            os.set_inheritable(file.fileno(), not WINDOWS)  # uv keeps the lock if it outlives this process
            yield
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def refuse_during_setup() -> None:
    """Raise SetupError while another process holds the setup lock."""
    with contextlib.suppress(FileNotFoundError), (places.STATE_FOLDER / "lock").open("rb+") as file:
        if not try_lock(file.fileno()):
            raise SetupError(message("launcher.setup_running"))


def try_lock(descriptor: int) -> bool:
    """Lock a file without waiting."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
