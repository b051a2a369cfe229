"""Python processes of our own beside this one: with what environment they start, and how they are ended.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

_NICER: Final = 5  # a third of a processor that is wanted by others too
_CODE_ROOT: Final = Path(__file__).resolve().parent.parent


def environment(**changes: str) -> dict[str, str]:
    """Ours, in which a child finds this package wherever it is started. Start it with `-P`, too: the current folder
    must not shadow packages."""
    python_path = os.pathsep.join(filter(None, (str(_CODE_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": python_path, **changes}


def step_back() -> None:
    """Let this process, and those that it starts from now on, wait for programs that a person uses meanwhile. Where
    nobody else works it is as quick."""
    with contextlib.suppress(psutil.Error, OSError):
        if sys.platform == "win32":
            psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            os.nice(_NICER)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started, such as a compiler. It may be over already."""
    if process.poll() is not None:
        return
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()


def interpreter_flags() -> list[str]:
    """Those that this Python was started with, such as `-X utf8`."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


# --- none lives without the other ------------------------------------------------------------------------


def leave_with(parent: int, saving: bool = False) -> None:
    """In a child: end when its parent is gone, however it went; `saving`: as when one is asked to, with what it has
    to save. On Windows `end_with_us` does it, and nothing is saved."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if saving else signal.SIGKILL)
        if os.getppid() != parent:  # it went before that was said
            os._exit(1)


_PR_SET_PDEATHSIG: Final = 1

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMIT_INFORMATION = 9

    class _Limits(ctypes.Structure):
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

    def end_with_us() -> None:
        """From now on all that we start ends when we do: the system ends our job when its only handle closes."""
        _kernel32.CreateJobObjectW.restype = wintypes.HANDLE
        _kernel32.GetCurrentProcess.restype = wintypes.HANDLE
        job = wintypes.HANDLE(_kernel32.CreateJobObjectW(None, None))
        limits = _Limits(flags=_KILL_ON_JOB_CLOSE)
        size = ctypes.sizeof(limits)
        _kernel32.SetInformationJobObject(job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size)
        _kernel32.AssignProcessToJobObject(job, wintypes.HANDLE(_kernel32.GetCurrentProcess()))

else:

    def end_with_us() -> None:
        """Elsewhere a child calls `leave_with`."""
