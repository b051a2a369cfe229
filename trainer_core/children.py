"""Python processes of our own beside this one: with what environment they start, and how they are ended.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
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
