"""Lock that allows one setup at a time."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from launcher import places
from launcher.environment_processes import setup_process_marker
from launcher.messages import message, print_and_log
from launcher.places import WINDOWS
from launcher.processes import INHERITED_DESCRIPTORS


@contextlib.contextmanager
def setup_lock() -> "Iterator[None]":
    """Hold the setup lock; the system releases it when its owner exits."""
    places.STATE_FOLDER.mkdir(exist_ok=True)
    with setup_process_marker(), (places.STATE_FOLDER / "lock").open("a+b") as file:
        announced = False
        while not try_lock(file.fileno()):
            if not announced:
                file.seek(0)
                owner = file.read(20).decode("ascii", "replace").strip()
                print_and_log(message("launcher.waiting_for_setup", pid=owner))
                announced = True
            time.sleep(0.5)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode("ascii"))
        file.flush()
        INHERITED_DESCRIPTORS[:] = [] if WINDOWS else [file.fileno()]
        yield
        INHERITED_DESCRIPTORS.clear()


def try_lock(descriptor: int) -> bool:
    """Lock a file without waiting. On Windows lock a byte far beyond the end, so that the PID stays readable."""
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
