"""Python processes of our own beside this one: with what environment they start, and how they are ended.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final

import psutil

_CODE_ROOT: Final = Path(__file__).resolve().parent.parent


def environment(**changes: str) -> dict[str, str]:
    """Ours, in which a child finds this package wherever it is started. Start it with `-P`, too: the current folder
    must not shadow packages."""
    python_path = os.pathsep.join(filter(None, (str(_CODE_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": python_path, **changes}


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
