"""One set-up at a time."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from launcher import places
from launcher.places import WINDOWS
from launcher.processes import KEPT_OPEN
from launcher.users import announced
from launcher.words import say


@contextlib.contextmanager
def only_one() -> "Iterator[None]":
    """Hold the set-up lock; the system lets go of it when its owner dies."""
    places.KEEP.mkdir(exist_ok=True)
    with announced(), (places.KEEP / "lock").open("a+b") as file:
        said = False
        while not try_lock(file.fileno()):
            if not said:
                file.seek(0)
                owner = file.read(20).decode("ascii", "replace").strip()
                say(f"Another set-up is running (process {owner}); waiting for it.")
                said = True
            time.sleep(0.5)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode("ascii"))
        file.flush()
        KEPT_OPEN[:] = [] if WINDOWS else [file.fileno()]
        yield
        KEPT_OPEN.clear()


def try_lock(descriptor: int) -> bool:
    """Lock a file without waiting. On Windows a byte far behind the end, so that the pid stays readable."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 20, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
