"""Prevents the computer from sleeping during training, and measures sleep. No effect where unsupported.

The inhibitor ends with this process: on Windows the execution state of the calling thread, on Linux a systemd inhibitor
whose process reads from our pipe. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from trainer_core.run_context import RunContext

_ES_CONTINUOUS: Final = 0x80000000
_ES_SYSTEM_REQUIRED: Final = 0x00000001
_INHIBIT: Final = ("--what=sleep:idle", "--mode=block", "--who=Traindeck", "--why=A model is being trained.")
_EXIT_TIMEOUT_S: Final = 2.0


@contextlib.contextmanager
def prevent_sleep(context: RunContext, enabled: bool) -> Iterator[None]:
    """Prevent sleep inside the context, except during pauses."""
    if not enabled:
        yield
        return

    @contextlib.contextmanager
    def allow_sleep() -> Iterator[None]:
        held.close()
        yield
        held.enter_context(inhibit_sleep())

    with contextlib.ExitStack() as held:
        held.enter_context(inhibit_sleep())
        context.pause_contexts.append(allow_sleep)
        try:
            yield
        finally:
            context.pause_contexts.remove(allow_sleep)


def suspended_s() -> float | None:
    """Seconds that this machine has slept since boot; None: unknown. Compares a clock that stops during sleep with one
    that does not; neither is affected by setting the time.
    """
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


@contextlib.contextmanager
def inhibit_sleep() -> Iterator[None]:
    """Prevent sleep inside the context if the system supports it; the screen may turn off."""
    if sys.platform == "win32":
        import ctypes

        set_state = ctypes.windll.kernel32.SetThreadExecutionState  # belongs to this thread and ends with it
        set_state(ctypes.c_uint32(_ES_CONTINUOUS | _ES_SYSTEM_REQUIRED))
        try:
            yield
        finally:
            set_state(ctypes.c_uint32(_ES_CONTINUOUS))
        return
    inhibit, cat = shutil.which("systemd-inhibit"), shutil.which("cat")
    inhibitor = None
    if inhibit is not None and cat is not None:
        with contextlib.suppress(OSError):
            inhibitor = subprocess.Popen(
                [inhibit, *_INHIBIT, cat],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C in a terminal is for the trainer, which still saves
            )
    try:
        yield
    finally:
        if inhibitor is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                inhibitor.communicate(timeout=_EXIT_TIMEOUT_S)  # `cat` exits at the end of its input
            inhibitor.kill()
            inhibitor.wait()
