"""Progress on the Windows taskbar button of a window, through ITaskbarList3.

ctypes calls the methods of the COM interface by their index in the vtable (shobjidl_core.h).

Tested on Wine 10 with Windows CPython 3.11: all calls return 0. Wine has no taskbar to display it.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_int, c_long, c_ubyte, c_ulong, c_ulonglong, c_ushort, c_void_p, cast
from ctypes import Structure as CStructure
from typing import Any, Final, Literal

ProgressState = Literal["none", "unknown", "normal", "paused", "error"]

_WINDOWS: Final = os.name == "nt"
_STATES: Final[dict[ProgressState, int]] = {"none": 0, "unknown": 1, "normal": 2, "error": 4, "paused": 8}  # TBPF_…
_HR_INIT: Final = 3  # ITaskbarList, after the three methods of IUnknown
_SET_PROGRESS_VALUE: Final = 9  # ITaskbarList3
_SET_PROGRESS_STATE: Final = 10
_CLSCTX_INPROC_SERVER: Final = 1


class _Guid(CStructure):
    _fields_ = [("a", c_ulong), ("b", c_ushort), ("c", c_ushort), ("d", c_ubyte * 8)]


def _guid(a: int, b: int, c: int, d: str) -> _Guid:
    return _Guid(a, b, c, (c_ubyte * 8).from_buffer_copy(bytes.fromhex(d)))


_CLSID: Final = _guid(0x56FDF344, 0xFD6D, 0x11D0, "958a006097c9a090")  # TaskbarList
_IID: Final = _guid(0xEA1AFB91, 0x9E28, 0x4B86, "90e99e9f8a5eefaf")  # ITaskbarList3


class TaskbarProgress:
    """Progress on the taskbar button of one window. Errors are ignored."""

    def __init__(self) -> None:
        self._taskbar_list: Any = None
        self._initialized = False
        self._last_progress: tuple[ProgressState, int] = ("none", 0)

    def set_progress(self, window: int, state: ProgressState, permille: int = 0) -> None:
        """Show `permille` (0..1000) in the color of `state`; `window` is its HWND."""
        if not _WINDOWS or (state, permille) == self._last_progress:
            return
        self._last_progress = (state, permille)
        if not self._initialized:
            self._initialized = True
            self._taskbar_list = self._create_taskbar_list()
        if self._taskbar_list is None:
            return
        if state not in ("none", "unknown"):
            total = c_ulonglong(1000)
            self._call(_SET_PROGRESS_VALUE, (c_void_p, c_ulonglong, c_ulonglong), window, c_ulonglong(permille), total)
        self._call(_SET_PROGRESS_STATE, (c_void_p, c_int), window, _STATES[state])  # last: a value resets it to normal

    def _create_taskbar_list(self) -> Any:
        """Qt's main thread is a COM apartment already."""
        instance = c_void_p()
        create = ctypes.windll.ole32.CoCreateInstance  # type: ignore[attr-defined,unused-ignore]  # on Windows
        create.argtypes = [c_void_p, c_void_p, c_ulong, c_void_p, c_void_p]
        create.restype = c_long
        if create(byref(_CLSID), None, _CLSCTX_INPROC_SERVER, byref(_IID), byref(instance)) != 0 or not instance.value:
            return None
        self._taskbar_list = instance
        return instance if self._call(_HR_INIT, ()) == 0 else None

    def _call(self, method_index: int, types: tuple[Any, ...], *arguments: Any) -> int:
        methods = cast(cast(self._taskbar_list, POINTER(c_void_p))[0], POINTER(c_void_p))
        method = ctypes.WINFUNCTYPE(c_long, c_void_p, *types)(methods[method_index])  # type: ignore[attr-defined,unused-ignore]
        return int(method(self._taskbar_list, *arguments))
