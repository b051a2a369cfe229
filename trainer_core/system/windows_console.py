"""Windows consoles: save before the window closes, and disable QuickEdit. No effect on other systems.

Windows calls a close handler in its own thread and ends the process when it returns. Python's SIGBREAK handler returns
at once, which would be too early. With QuickEdit, a click into the console starts a selection, which blocks all output
until it ends and so suspends training. The mode belongs to the console, not to the process, so it is restored.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_CLOSE_EVENTS: Final = (2, 5, 6)  # window, session, shutdown
_WAIT_S: Final = 30.0  # longer than Windows waits (5 s for a window): the process exits first
_QUICK_EDIT: Final = 0x0040
_EXTENDED_FLAGS: Final = 0x0080  # required to change QuickEdit
_READ_WRITE: Final = 0xC0000000
_SHARED: Final = 3
_OPEN_EXISTING: Final = 3

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.CreateFileW.restype = wintypes.HANDLE
    _callbacks: list[Callable[[], None]] = []

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
        _kernel32.SetConsoleCtrlHandler(_ctrl_handler, True)
        try:
            yield
        finally:
            _kernel32.SetConsoleCtrlHandler(_ctrl_handler, False)
            _callbacks.remove(stop)

    @contextlib.contextmanager
    def disable_quick_edit() -> Iterator[None]:
        """QuickEdit is off inside the context; no effect without a console."""
        opened = _kernel32.CreateFileW("CONIN$", _READ_WRITE, _SHARED, None, _OPEN_EXISTING, 0, None)
        console, mode = wintypes.HANDLE(opened), wintypes.DWORD()
        if not _kernel32.GetConsoleMode(console, ctypes.byref(mode)):
            yield
            return
        _kernel32.SetConsoleMode(console, mode.value & ~_QUICK_EDIT | _EXTENDED_FLAGS)
        try:
            yield
        finally:
            _kernel32.SetConsoleMode(console, mode.value | _EXTENDED_FLAGS)
            _kernel32.CloseHandle(console)

else:

    def stop_on_close(stop: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """A closing terminal sends SIGHUP."""
        return contextlib.nullcontext()

    def disable_quick_edit() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
