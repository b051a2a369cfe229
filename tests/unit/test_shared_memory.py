"""GPU memory that lies in system memory, as Windows counts it. The library itself is only on Windows."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import pytest

from trainer_core.system.shared_gpu_memory import SharedGpuMemoryCounter, sum_for_process

GIB = 1024**3
MORE_DATA = ctypes.c_int32(0x800007D2).value  # as ctypes returns it


class Pdh:
    """Answers as the documentation of pdh.dll says: first the size, then items of 24 bytes with their names behind."""

    def __init__(self, values: list[tuple[str, int, int]]) -> None:
        self.values, self.collected = values, 0
        self._names = [ctypes.create_unicode_buffer(name) for name, _, _ in values]

    def PdhCollectQueryData(self, query: Any) -> int:
        self.collected += 1
        return 0

    def PdhGetFormattedCounterArrayW(self, counter: Any, form: int, size: Any, count: Any, buffer: Any) -> int:
        assert form == 0x400
        size._obj.value, count._obj.value = 24 * len(self.values), len(self.values)
        if buffer is None:
            return MORE_DATA
        for place, (_, status, value) in enumerate(self.values):
            name = ctypes.c_uint64(ctypes.addressof(self._names[place]))
            item = bytes(name) + bytes(ctypes.c_uint32(status)) + bytes(4) + bytes(ctypes.c_int64(value))
            ctypes.memmove(ctypes.addressof(buffer) + 24 * place, item, 24)
        return 0


def counter(values: list[tuple[str, int, int]], pid: int = 1234) -> SharedGpuMemoryCounter:
    made = SharedGpuMemoryCounter(pid)
    made._pdh = Pdh(values)
    return made


def test_it_is_the_sum_over_the_gpus_of_this_process_alone() -> None:
    values = [
        ("pid_1234_luid_0x00000000_0x0000C4E5_phys_0", 0, 3 * GIB),
        ("pid_1234_luid_0x00000000_0x0000D001_phys_0", 1, GIB),
        ("pid_12345_luid_0x00000000_0x0000C4E5_phys_0", 0, 7 * GIB),
        ("pid_99_luid_0x00000000_0x0000C4E5_phys_0", 0, 5 * GIB),
    ]
    assert counter(values).read() == 4 * GIB


def test_a_value_that_windows_calls_invalid_does_not_count() -> None:
    assert counter([("pid_1234_luid_0_phys_0", 0, 10), ("pid_1234_luid_1_phys_0", 0xC0000BBA, 99)]).read() == 10


def test_a_process_that_windows_does_not_list_has_no_figure_rather_than_nothing() -> None:
    assert counter([("pid_99_luid_0_phys_0", 0, 10)]).read() is None
    assert counter([]).read() is None
    assert sum_for_process([("pid_123_x", 5)], 12) is None


def test_the_real_counter_tells_a_figure_or_nothing_and_never_raises() -> None:
    told = SharedGpuMemoryCounter(os.getpid()).read()
    assert told is None or (sys.platform == "win32" and told >= 0)


@pytest.mark.skipif(sys.platform != "win32", reason="for Windows")
def test_the_library_of_windows_takes_the_query() -> None:
    made = SharedGpuMemoryCounter(os.getpid())
    assert made._query.value
