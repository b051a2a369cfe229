"""Disables QuickEdit of a Windows console, in which a click would suspend training.

A click starts a selection, which blocks all output until it ends. The mode belongs to the console, not to the process,
so it is restored. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final

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

    @contextlib.contextmanager
    def disable_quick_edit() -> Iterator[None]:
        """No QuickEdit on this system."""
        yield
