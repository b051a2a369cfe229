"""Keeps the computer from going to sleep while it trains, and tells how long it slept. Where that cannot be done,
nothing happens.

What holds sleep back belongs to this process and ends with it, however it ends: on Windows a wish of one of its
threads, on Linux an inhibitor of systemd whose process reads from a pipe of ours. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from trainer_core.session import Session

_ES_CONTINUOUS: Final = 0x80000000
_ES_SYSTEM_REQUIRED: Final = 0x00000001
_INHIBIT: Final = ("--what=sleep:idle", "--mode=block", "--who=Traindeck", "--why=A model is being trained.")
_END_S: Final = 2.0


@contextlib.contextmanager
def keeping_awake(session: Session, wanted: bool) -> Iterator[None]:
    """No sleep while this lasts, but in pauses."""
    if not wanted:
        yield
        return
    held = contextlib.ExitStack()

    @contextlib.contextmanager
    def let_go() -> Iterator[None]:
        held.close()
        yield
        held.enter_context(no_sleep())

    session.around_pauses.append(let_go)
    with held:
        held.enter_context(no_sleep())
        try:
            yield
        finally:
            session.around_pauses.remove(let_go)


def slept_s() -> float | None:
    """Seconds that this machine was asleep since it was started; None where that is not told. Each system has a clock
    that stands still meanwhile and one that does not; neither knows of a time that a person sets."""
    if sys.platform == "win32":
        import ctypes

        kernel, awake = ctypes.WinDLL("kernel32"), ctypes.c_uint64()
        kernel.GetTickCount64.restype = ctypes.c_uint64
        if not kernel.QueryUnbiasedInterruptTime(ctypes.byref(awake)):
            return None
        return max(0.0, float(kernel.GetTickCount64()) / 1e3 - awake.value / 1e7)
    with_sleep = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    if with_sleep is None:
        return None
    return max(0.0, time.clock_gettime(with_sleep) - time.clock_gettime(time.CLOCK_MONOTONIC))


def no_sleep() -> contextlib.AbstractContextManager[None]:
    """Sleep is held back while this lasts, as well as this system allows; the screen may turn dark."""
    return _by_windows() if sys.platform == "win32" else _by_systemd()


@contextlib.contextmanager
def _by_windows() -> Iterator[None]:
    """The wish is a thread's own, so a thread has it for as long as it lives: others may end before the work does."""
    over = threading.Event()

    def wish() -> None:
        _set_execution_state(_ES_CONTINUOUS | _ES_SYSTEM_REQUIRED)
        over.wait()
        _set_execution_state(_ES_CONTINUOUS)

    thread = threading.Thread(target=wish, name="awake", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _set_execution_state(flags: int) -> None:
    if sys.platform == "win32":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.windll.kernel32.SetThreadExecutionState(ctypes.c_uint32(flags))


@contextlib.contextmanager
def _by_systemd() -> Iterator[None]:
    inhibit, cat = shutil.which("systemd-inhibit"), shutil.which("cat")
    if inhibit is None or cat is None:
        yield
        return
    nothing = subprocess.DEVNULL
    try:
        holder = subprocess.Popen(
            [inhibit, *_INHIBIT, cat],
            stdin=subprocess.PIPE,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,  # a terminal's Ctrl+C is for the trainer, which still saves
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            holder.communicate(timeout=_END_S)  # `cat` ends with its input
        holder.kill()
        holder.wait()
