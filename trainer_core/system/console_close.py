"""Saves before a Windows console closes, or the session ends.

Windows calls a handler in its own thread and ends the process when it returns. Python's SIGBREAK handler returns at
once, which would be too early. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_CLOSE_EVENTS: Final = (2, 5, 6)  # window, session, shutdown
_WAIT_S: Final = 30.0  # longer than Windows waits (5 s for a window): the process exits first

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _callbacks: list[Callable[[], None]] = []
    _set_console_ctrl_handler = ctypes.WinDLL("kernel32").SetConsoleCtrlHandler

    def _on_console(event: int) -> bool:
        """Called by Windows; False: call the next handler."""
        if event not in _CLOSE_EVENTS:
            return False
        for stop in _callbacks:
            stop()
        time.sleep(_WAIT_S)
        return True

    _ctrl_handler = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(_on_console)

    @contextlib.contextmanager
    def stop_on_close(stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop`, from another thread, when the console closes. Enter after signal handlers are set: the last
        handler is called first.
        """
        _callbacks.append(stop)
        _set_console_ctrl_handler(_ctrl_handler, True)
        try:
            yield
        finally:
            _set_console_ctrl_handler(_ctrl_handler, False)
            _callbacks.remove(stop)

else:

    @contextlib.contextmanager
    def stop_on_close(stop: Callable[[], None]) -> Iterator[None]:
        """A closing terminal sends SIGHUP."""
        yield
