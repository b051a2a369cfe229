"""GPU memory of a process that lies in system memory ("shared GPU memory" on Windows).

NVML does not report it. Windows counts it per process since version 1709 (performance counter "GPU Process Memory",
shown by Task Manager). It includes page-locked memory, so its growth matters. Other systems have no such memory: a CUDA
allocation that does not fit fails.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any, Final

_COUNTER: Final = r"\GPU Process Memory(*)\Shared Usage"  # English name, valid on any Windows (PdhAddEnglishCounterW)
_PDH_FMT_LARGE: Final = 0x00000400  # PDH_FMT_LARGE: 64-bit integers
_PDH_MORE_DATA: Final = 0x800007D2  # PDH_MORE_DATA: the buffer was too small
_MAX_BUFFER_BYTES: Final = 16 * 1024**2
_VALID_STATUSES: Final = (0, 1)  # PDH_CSTATUS_VALID_DATA, PDH_CSTATUS_NEW_DATA


class _Item(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W, with the 64-bit member of its union."""

    _fields_ = (("name", ctypes.c_wchar_p), ("status", ctypes.c_uint32), ("value", ctypes.c_int64))


class SharedGpuMemoryCounter:
    """The counter of one process. `read` returns bytes, or None if unavailable."""

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
        return sum_for_process(self._values(), self._pid)

    def _values(self) -> list[tuple[str, int]]:
        """Values by counter name, of all processes and GPUs."""
        size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
        arguments = self._counter, _PDH_FMT_LARGE, ctypes.byref(size), ctypes.byref(count)
        read_array = self._pdh.PdhGetFormattedCounterArrayW
        status = read_array(*arguments, None) & 0xFFFFFFFF
        if status != _PDH_MORE_DATA or size.value > _MAX_BUFFER_BYTES:
            return []
        buffer = ctypes.create_string_buffer(size.value)
        if read_array(*arguments, buffer) != 0:
            return []
        items = ctypes.cast(buffer, ctypes.POINTER(_Item))
        return [(item.name or "", item.value) for item in items[: count.value] if item.status in _VALID_STATUSES]


def sum_for_process(values: Iterable[tuple[str, int]], pid: int) -> int | None:
    """The sum over a process's counters, named `pid_1234_luid_0x00000000_0x0000C4E5_phys_0`; None without any."""
    own = [value for name, value in values if name.startswith(f"pid_{pid}_")]
    return sum(own) if own else None
