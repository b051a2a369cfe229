"""A Windows console that is closed, by its cross or with the session, leaves its programs some seconds: to save.

Windows tells them by a call in a thread of its own, and ends a program when that returns. What Python makes of it, the
signal SIGBREAK, returns at once. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_CLOSED: Final = (2, 5, 6)  # the window, the session, Windows itself
_WAIT_S: Final = 30.0  # longer than Windows waits (5 s for a window): it is the program that ends

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _stops: list[Callable[[], None]] = []
    _set_routine = ctypes.WinDLL("kernel32").SetConsoleCtrlHandler

    def _on_console(event: int) -> bool:
        """Called by Windows; False: whoever listened before is asked."""
        if event not in _CLOSED:
            return False
        for stop in _stops:
            stop()
        time.sleep(_WAIT_S)
        return True

    _routine = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(_on_console)

    @contextlib.contextmanager
    def stopping_before_it(stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop`, from another thread, when the console closes. To be entered after handlers of signals are set:
        the last to listen is asked first."""
        _stops.append(stop)
        _set_routine(_routine, True)
        try:
            yield
        finally:
            _set_routine(_routine, False)
            _stops.remove(stop)

else:

    @contextlib.contextmanager
    def stopping_before_it(stop: Callable[[], None]) -> Iterator[None]:
        """A terminal that closes says SIGHUP."""
        yield
