"""Shared GPU memory counter. pdh.dll itself exists only on Windows."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import pytest

from trainer_core.system.shared_gpu_memory import SharedGpuMemoryCounter

GIB = 1024**3
MORE_DATA = ctypes.c_int32(0x800007D2).value  # PDH_MORE_DATA as ctypes returns it


class FakePdh:
    """Fake pdh.dll. A call without a buffer returns the size; a call with one fills in items of 24 bytes."""

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
        for index, (_, status, value) in enumerate(self.values):
            name = ctypes.c_uint64(ctypes.addressof(self._names[index]))
            item = bytes(name) + bytes(ctypes.c_uint32(status)) + bytes(4) + bytes(ctypes.c_int64(value))
            ctypes.memmove(ctypes.addressof(buffer) + 24 * index, item, 24)
        return 0


def create_counter(values: list[tuple[str, int, int]], pid: int = 1234) -> SharedGpuMemoryCounter:
    counter = SharedGpuMemoryCounter(pid)
    counter._pdh = FakePdh(values)
    return counter


def test_the_counter_sums_the_gpus_of_its_process() -> None:
    values = [
        ("pid_1234_luid_0x00000000_0x0000C4E5_phys_0", 0, 3 * GIB),
        ("pid_1234_luid_0x00000000_0x0000D001_phys_0", 1, GIB),
        ("pid_12345_luid_0x00000000_0x0000C4E5_phys_0", 0, 7 * GIB),
        ("pid_99_luid_0x00000000_0x0000C4E5_phys_0", 0, 5 * GIB),
    ]
    assert create_counter(values).read() == 4 * GIB


def test_invalid_values_are_skipped() -> None:
    assert create_counter([("pid_1234_luid_0_phys_0", 0, 10), ("pid_1234_luid_1_phys_0", 0xC0000BBA, 99)]).read() == 10


def test_the_value_of_an_unlisted_process_is_none() -> None:
    assert create_counter([("pid_99_luid_0_phys_0", 0, 10)]).read() is None
    assert create_counter([]).read() is None
    assert create_counter([("pid_123_luid_0_phys_0", 0, 5)], 12).read() is None


def test_the_real_counter_never_raises() -> None:
    value = SharedGpuMemoryCounter(os.getpid()).read()
    assert value is None or (sys.platform == "win32" and value >= 0)


@pytest.mark.skipif(sys.platform != "win32", reason="requires Windows")
def test_the_query_can_be_opened_on_windows() -> None:
    assert SharedGpuMemoryCounter(os.getpid())._query.value
