"""Conditions that pause a run: a schedule, and other programs on its GPU. No torch, no Qt."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import psutil

from trainer_core import pause_schedule
from trainer_core.run_context import PauseState, RunContext

NvmlQuery = Callable[..., Any]
"""Queries NVML about one card: a function's name and its arguments after the handle; None on failure."""

_MEMORY_THRESHOLD_BYTES: Final = 2**30  # GPU memory above what others hold permanently
_BUSY_AFTER_S: Final = 5.0  # shorter use does not pause the run
_IDLE_AFTER_S: Final = 60.0  # shorter gaps do not resume it
_COMPILER: Final = "trainer_core.train.engine.compilation"  # in the command of the process that compiles
_PROCESS_QUERIES: Final = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


def scheduled_pause(pause_between: str) -> Callable[[], PauseState | None]:
    """Pause during the spans of a schedule."""
    windows = pause_schedule.parse(pause_between)

    def pause_state() -> PauseState | None:
        end = pause_schedule.pause_end(windows, datetime.now())
        return None if end is None else PauseState("schedule", end.timestamp())

    return pause_state


class ExternalGpuMonitor:
    """Pauses the run while other programs use much GPU memory.

    Memory counts above the minimum that others have held since the start, so a desktop does not pause the run.
    `on_busy` receives the program's name, which may be empty.
    """

    def __init__(self, on_busy: Callable[[str], None]) -> None:
        self._on_busy = on_busy
        self._baseline_bytes: int | None = None  # minimum of others
        self._changed_at: float | None = None  # when use began to differ from `_busy`
        self._busy = False

    def pause_state(self) -> PauseState | None:
        return PauseState("other_program") if self._busy else None

    def update(self, timestamp_s: float, memory: int, name: str = "") -> None:
        """Process a sample: monotonic seconds, bytes held by others, and the program with most. Call every few
        seconds.
        """
        self._baseline_bytes = memory if self._baseline_bytes is None else min(memory, self._baseline_bytes)
        busy = memory - self._baseline_bytes >= _MEMORY_THRESHOLD_BYTES
        if busy == self._busy:
            self._changed_at = None
            return
        self._changed_at = timestamp_s if self._changed_at is None else self._changed_at
        if timestamp_s - self._changed_at >= (_IDLE_AFTER_S if self._busy else _BUSY_AFTER_S):
            self._busy, self._changed_at = busy, None
            if busy:
                self._on_busy(name)


def query_external_memory(query: NvmlQuery, reserved: int) -> tuple[int, str] | None:
    """GPU memory that other programs hold, and the name of the program with most (empty if unknown); None: unknown.

    `reserved`: bytes of this run's allocator. Unknown also while the run compiles in another process, where the driver
    does not tell who holds memory.
    """
    held = {process.pid: process.usedGpuMemory for name in _PROCESS_QUERIES for process in query(name) or []}
    others = {pid: size for pid, size in held.items() if not _is_own(pid)}
    # No memory per process on Windows; other process numbers in containers.
    if len(others) == len(held) or None in others.values():
        if _is_compiling():
            return None
        used = getattr(query("nvmlDeviceGetMemoryInfo"), "used", None)
        return None if used is None else (max(0, int(used) - reserved), "")
    return sum(others.values()), _process_name(max(others, key=lambda pid: int(others[pid]))) if others else ""


def _is_own(pid: int) -> bool:
    """This process or a descendant (a compiler uses the GPU, too)."""
    try:
        return pid == os.getpid() or os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _is_compiling() -> bool:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has exited
            if _COMPILER in child.cmdline():
                return True
    return False


def _process_name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def monitor_external_usage(context: RunContext) -> Callable[[NvmlQuery, int], None]:
    """Add other programs as a pause condition of the run. Call the returned function every few seconds with the NVML
    query and the bytes of this run's allocator.
    """
    monitor = ExternalGpuMonitor(lambda name: context.warn("pause.other_program", name=name) if name else None)
    context.pause_conditions.append(monitor.pause_state)

    def update(query: NvmlQuery, reserved: int) -> None:
        found = query_external_memory(query, reserved)
        if found is not None:
            monitor.update(time.monotonic(), *found)

    return update
