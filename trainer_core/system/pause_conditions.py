"""Conditions that pause a run: a schedule, and other programs on its GPU. No torch, no Qt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import psutil

from trainer_core import pause_schedule
from trainer_core.run_context import PauseState, RunContext

NvmlQuery = Callable[..., Any]
"""Queries NVML about one card: a function's name and its arguments after the handle; None on failure."""

_MEMORY_THRESHOLD_BYTES: Final = 2**30  # GPU memory above what others hold permanently
_UTILIZATION_THRESHOLD: Final = 0.3  # of the GPU's time
_BUSY_AFTER_S: Final = 5.0  # shorter use does not pause the run
_IDLE_AFTER_S: Final = 60.0  # shorter gaps do not resume it
_MAX_SAMPLE_AGE_US: Final = 3_000_000  # older samples may be of a program that has exited
_PROCESS_QUERIES: Final = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


def scheduled_pause(pause_between: str) -> Callable[[], PauseState | None]:
    """Pause during the spans of a schedule."""
    windows = pause_schedule.parse(pause_between)

    def pause_state() -> PauseState | None:
        end = pause_schedule.pause_end(windows, datetime.now())
        return None if end is None else PauseState("schedule", end.timestamp())

    return pause_state


class ExternalGpuUsage(NamedTuple):
    """GPU use by other programs at one moment."""

    timestamp_s: float  # monotonic seconds
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1; None: not distinguishable from this run's own
    name: str = ""  # of the program with the most memory


class ExternalGpuMonitor:
    """Pauses the run while another program uses the GPU heavily.

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

    def update(self, usage: ExternalGpuUsage) -> None:
        """Process a sample; call every few seconds."""
        extra_bytes = 0
        if usage.memory is not None:
            baseline = usage.memory if self._baseline_bytes is None else self._baseline_bytes
            self._baseline_bytes = min(baseline, usage.memory)
            extra_bytes = usage.memory - self._baseline_bytes
        busy = extra_bytes >= _MEMORY_THRESHOLD_BYTES or (usage.utilization or 0.0) >= _UTILIZATION_THRESHOLD
        if busy == self._busy:
            self._changed_at = None
            return
        self._changed_at = usage.timestamp_s if self._changed_at is None else self._changed_at
        if usage.timestamp_s - self._changed_at >= (_IDLE_AFTER_S if self._busy else _BUSY_AFTER_S):
            self._busy, self._changed_at = busy, None
            if busy:
                self._on_busy(usage.name)


def query_external_usage(query: NvmlQuery, reserved: int, paused: bool, timestamp_s: float) -> ExternalGpuUsage:
    """Query NVML. `reserved`: bytes of this run's allocator; `paused`: this run does not use the GPU."""
    listed = [process for function in _PROCESS_QUERIES for process in query(function) or []]
    held = {process.pid: process.usedGpuMemory for process in listed}
    own = {pid for pid in held if _is_own(pid)}
    others = {pid: size for pid, size in held.items() if pid not in own}
    utilization = _external_utilization(query, own, paused)
    if not own or None in others.values():  # no memory per process on Windows; other process numbers in containers
        used = getattr(query("nvmlDeviceGetMemoryInfo"), "used", None)
        return ExternalGpuUsage(timestamp_s, None if used is None else max(0, int(used) - reserved), utilization)
    name = _process_name(max(others, key=lambda pid: int(others[pid]))) if others else ""
    return ExternalGpuUsage(timestamp_s, sum(others.values()), utilization, name)


def _external_utilization(query: NvmlQuery, own: set[int], paused: bool) -> float | None:
    """Utilization by other programs, 0..1. While this run uses the GPU, only some drivers report it."""
    if paused:
        rates = query("nvmlDeviceGetUtilizationRates")
        return None if rates is None else float(rates.gpu) / 100
    samples = query("nvmlDeviceGetProcessUtilization", 0)  # of the last seconds
    if not samples or not own:
        return None
    recent = max(int(sample.timeStamp) for sample in samples) - _MAX_SAMPLE_AGE_US
    latest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: int(sample.timeStamp))}
    theirs = [sample for sample in latest.values() if sample.pid not in own and int(sample.timeStamp) >= recent]
    return sum(float(sample.smUtil) for sample in theirs) / 100


def _is_own(pid: int) -> bool:
    """This process or a descendant (a compiler uses the GPU, too)."""
    try:
        return pid == os.getpid() or os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _process_name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def monitor_external_usage(session: RunContext) -> Callable[[NvmlQuery, int], None]:
    """Add other programs as a pause condition of the run. Call the returned function every few seconds with the NVML
    query and the bytes of this run's allocator.
    """
    monitor = ExternalGpuMonitor(lambda name: session.warn("pause.other_program", name=name) if name else None)
    session.pause_conditions.append(monitor.pause_state)

    def update(query: NvmlQuery, reserved: int) -> None:
        monitor.update(query_external_usage(query, reserved, session.is_paused, time.monotonic()))

    return update
