"""GPU memory of a process that lies in system memory ("shared GPU memory" on Windows).

NVML does not report it. Windows counts it per process since version 1709 (performance counter "GPU Process Memory",
shown by Task Manager). It includes page-locked memory, so its growth matters. Other systems have no such memory: a CUDA
allocation that does not fit fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
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
        self._prefix = f"pid_{pid}_"  # of names such as `pid_1234_luid_0x00000000_0x0000C4E5_phys_0`
        self._pdh: Any = None
        self._query, self._counter = ctypes.c_void_p(), ctypes.c_void_p()
        if sys.platform == "win32":
            with contextlib.suppress(OSError, AttributeError):  # no such library, or an older one
                pdh = ctypes.WinDLL("pdh")
                opened = pdh.PdhOpenQueryW(None, None, ctypes.byref(self._query)) == 0
                if opened and pdh.PdhAddEnglishCounterW(self._query, _COUNTER, None, ctypes.byref(self._counter)) == 0:
                    self._pdh = pdh

    def read(self) -> int | None:
        """Bytes of this process on all GPUs."""
        if self._pdh is None or self._pdh.PdhCollectQueryData(self._query) != 0:
            return None
        size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
        arguments = self._counter, _PDH_FMT_LARGE, ctypes.byref(size), ctypes.byref(count)
        read_array = self._pdh.PdhGetFormattedCounterArrayW
        status = read_array(*arguments, None) & 0xFFFFFFFF
        if status != _PDH_MORE_DATA or size.value > _MAX_BUFFER_BYTES:
            return None
        buffer = ctypes.create_string_buffer(size.value)
        if read_array(*arguments, buffer) != 0:
            return None
        items = ctypes.cast(buffer, ctypes.POINTER(_Item))[: count.value]  # of all processes and GPUs
        own = [one for one in items if one.status in _VALID_STATUSES and (one.name or "").startswith(self._prefix)]
        return sum(one.value for one in own) if own else None
