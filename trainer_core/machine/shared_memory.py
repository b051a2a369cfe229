"""How much GPU memory of a process lies in system memory: what Windows calls shared GPU memory.

NVML does not tell. Windows counts it for each process since version 1709 ("GPU Process Memory", what Task Manager
shows), and gives it out through its Performance Data Helper. Page-locked memory is counted too, so what matters is how
much it has grown. Elsewhere there is no such counter: a CUDA allocation that does not fit fails.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any, Final

_COUNTER: Final = r"\GPU Process Memory(*)\Shared Usage"  # in English on any Windows (PdhAddEnglishCounterW)
_LARGE: Final = 0x00000400  # PDH_FMT_LARGE: 64-bit integers
_MORE_DATA: Final = 0x800007D2  # PDH_MORE_DATA: the buffer was too small
_MOST_BYTES: Final = 16 * 1024**2
_VALID: Final = (0, 1)  # PDH_CSTATUS_VALID_DATA, PDH_CSTATUS_NEW_DATA


class _Item(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W, with the 64-bit member of its union."""

    _fields_ = (("name", ctypes.c_wchar_p), ("status", ctypes.c_uint32), ("value", ctypes.c_int64))


class SharedGpuMemory:
    """The counter of one process. `read` gives bytes, or None where this system does not tell."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pdh: Any = None
        self._query, self._counter = ctypes.c_void_p(), ctypes.c_void_p()
        if sys.platform == "win32":
            self._open()

    def _open(self) -> None:
        try:
            pdh = ctypes.WinDLL("pdh")  # type: ignore[attr-defined,unused-ignore]
            opened = pdh.PdhOpenQueryW(None, None, ctypes.byref(self._query)) == 0
            if opened and pdh.PdhAddEnglishCounterW(self._query, _COUNTER, None, ctypes.byref(self._counter)) == 0:
                self._pdh = pdh
        except (OSError, AttributeError):  # no such library, or an older one
            self._pdh = None

    def read(self) -> int | None:
        """Bytes of this process on all GPUs."""
        if self._pdh is None or self._pdh.PdhCollectQueryData(self._query) != 0:
            return None
        return of_process(self._values(), self._pid)

    def _values(self) -> list[tuple[str, int]]:
        """Every process and GPU that Windows counts, by the name of its counter."""
        size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
        ask = self._pdh.PdhGetFormattedCounterArrayW
        if ask(self._counter, _LARGE, ctypes.byref(size), ctypes.byref(count), None) & 0xFFFFFFFF != _MORE_DATA:
            return []
        if size.value > _MOST_BYTES:
            return []
        buffer = ctypes.create_string_buffer(size.value)
        if ask(self._counter, _LARGE, ctypes.byref(size), ctypes.byref(count), buffer) != 0:
            return []
        items = ctypes.cast(buffer, ctypes.POINTER(_Item))
        return [(item.name or "", item.value) for item in items[: count.value] if item.status in _VALID]


def of_process(values: Iterable[tuple[str, int]], pid: int) -> int | None:
    """The sum over a process's counters, named `pid_1234_luid_0x00000000_0x0000C4E5_phys_0`; None without any."""
    own = [value for name, value in values if name.startswith(f"pid_{pid}_")]
    return sum(own) if own else None
