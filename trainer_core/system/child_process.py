"""Child processes in Python: environment, priority, termination.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from trainer_core.system import program_files

_KILLED: Final = -9
_NO_MEMORY: Final = (0xC0000017, 0xC000012D)  # Windows: STATUS_NO_MEMORY, STATUS_COMMITMENT_LIMIT
_START_S: Final = 0.02  # a process that a suspended one was starting appears within this time
_NICER: Final = 5  # nice value: a third of a contended processor


def environment(**changes: str) -> dict[str, str]:
    """Environment in which a child in Python finds this package from any folder, in UTF-8 mode. Start it with `-P`,
    too: modules in the current folder must not shadow packages.
    """
    own = "" if program_files.IS_INSTALLED else str(program_files.ROOT)  # site-packages come after the standard library
    python_path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": python_path, "PYTHONUTF8": "1", **changes}


def lower_priority() -> None:
    """Lower the priority of this process and of children that it starts later. No effect on an idle machine."""
    with contextlib.suppress(psutil.Error, OSError):
        if sys.platform == "win32":
            psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            os.nice(_NICER)


def use_idle_processors() -> None:
    """Run when processors are idle: a process of many short steps slows others by a third even at nice 19. Other
    systems: as `lower_priority`.
    """
    if sys.platform != "linux":
        lower_priority()
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may have ended
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def is_out_of_memory(exit_code: int) -> bool:
    """Return whether a process that exited with this code ran out of memory or was killed by the system for it."""
    return exit_code == _KILLED or exit_code & 0xFFFFFFFF in _NO_MEMORY


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, such as compilers. It may have exited already.

    They are suspended first: a child that one of them is just starting would survive.
    """
    members: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        found = [root]
        while found:
            for member in found:
                with contextlib.suppress(psutil.Error):
                    member.suspend()
            members += found
            time.sleep(_START_S)
            found = [member for member in root.children(recursive=True) if member not in members]
    for member in members:
        with contextlib.suppress(psutil.Error):
            member.kill()


def kill_child(child: subprocess.Popen[bytes]) -> None:
    """Kill a child of this process and its descendants, and wait for its exit. It may have exited already."""
    if child.poll() is None:
        kill_tree(child.pid)
        child.kill()
        child.wait()


def interpreter_flags() -> list[str]:
    """Flags of this Python, such as `-X utf8`."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


# --- exit with the parent -----------------------------------------------------------------------------


def exit_with_parent(parent_pid: int, graceful: bool = False) -> None:
    """In a child: exit when the parent exits. `graceful`: as on a termination request, saving first. On Windows see
    `kill_children_on_exit`, without saving.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if graceful else signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent exited before the request
            os._exit(1)


_PR_SET_PDEATHSIG: Final = 1

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMIT_INFORMATION = 9

    class _ExtendedLimitInformation(ctypes.Structure):
        """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

        _fields_ = (
            ("per_process_time", ctypes.c_int64),
            ("per_job_time", ctypes.c_int64),
            ("flags", wintypes.DWORD),
            ("least_working_set", ctypes.c_size_t),
            ("most_working_set", ctypes.c_size_t),
            ("processes", wintypes.DWORD),
            ("affinity", ctypes.c_size_t),
            ("priority", wintypes.DWORD),
            ("scheduling", wintypes.DWORD),
            ("io", ctypes.c_uint64 * 6),
            ("memory", ctypes.c_size_t * 4),
        )

    def kill_children_on_exit() -> None:
        """Kill all children when this process exits: the system closes their job with its only handle."""
        _kernel32.CreateJobObjectW.restype = wintypes.HANDLE
        _kernel32.GetCurrentProcess.restype = wintypes.HANDLE
        job = wintypes.HANDLE(_kernel32.CreateJobObjectW(None, None))
        limits = _ExtendedLimitInformation(flags=_KILL_ON_JOB_CLOSE)
        size = ctypes.sizeof(limits)
        _kernel32.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size)
        _kernel32.AssignProcessToJobObject(job, wintypes.HANDLE(_kernel32.GetCurrentProcess()))

else:

    def kill_children_on_exit() -> None:
        """Children call `exit_with_parent` instead."""
