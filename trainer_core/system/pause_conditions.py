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

    def hold() -> PauseState | None:
        end = pause_schedule.pause_end(windows, datetime.now())
        return None if end is None else PauseState("schedule", end.timestamp())

    return hold


class ExternalGpuUsage(NamedTuple):
    """GPU use by other programs at one moment."""

    timestamp_s: float  # monotonic seconds
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1; None: not distinguishable from this run's own
    name: str = ""  # of the program with the most memory


class ExternalGpuMonitor:
    """Pauses the run while another program uses the GPU heavily.

    Memory counts above the minimum that others have held since the start, so a desktop does not pause the run.
    `appeared` receives the program's name, which may be empty.
    """

    def __init__(self, appeared: Callable[[str], None]) -> None:
        self._on_appeared = appeared
        self._baseline_bytes: int | None = None  # minimum of others
        self._changed_at: float | None = None  # when use began to differ from `_busy`
        self._busy = False

    def pause_state(self) -> PauseState | None:
        return PauseState("other_program") if self._busy else None

    def update(self, look: ExternalGpuUsage) -> None:
        """Process a sample; call every few seconds."""
        if look.memory is not None:
            self._baseline_bytes = (
                look.memory if self._baseline_bytes is None else min(self._baseline_bytes, look.memory)
            )
        much_memory = look.memory is not None and look.memory - (self._baseline_bytes or 0) >= _MEMORY_THRESHOLD_BYTES
        much_use = look.utilization is not None and look.utilization >= _UTILIZATION_THRESHOLD
        if (much_memory or much_use) == self._busy:
            self._changed_at = None
            return
        self._changed_at = look.timestamp_s if self._changed_at is None else self._changed_at
        if look.timestamp_s - self._changed_at >= (_IDLE_AFTER_S if self._busy else _BUSY_AFTER_S):
            self._busy, self._changed_at = not self._busy, None
            if self._busy:
                self._on_appeared(look.name)


def query_external_usage(query: NvmlQuery, reserved: int, paused: bool, timestamp_s: float) -> ExternalGpuUsage:
    """Query NVML. `reserved`: bytes of this run's allocator; `paused`: this run does not use the GPU."""
    listed = [process for function in _PROCESS_QUERIES for process in query(function) or []]
    held = {process.pid: process.usedGpuMemory for process in listed}
    own = {pid for pid in held if _is_own(pid)}
    others = {pid: size for pid, size in held.items() if pid not in own}
    if not own or None in others.values():  # no memory per process on Windows; other process numbers in containers
        return ExternalGpuUsage(
            timestamp_s, _external_memory(query, reserved), _external_utilization(query, own, paused)
        )
    largest = max(others, key=lambda pid: int(others[pid]), default=None)
    name = "" if largest is None else _name_of(largest)
    return ExternalGpuUsage(timestamp_s, sum(others.values()), _external_utilization(query, own, paused), name)


def _external_memory(ask: NvmlQuery, reserved: int) -> int | None:
    used = getattr(ask("nvmlDeviceGetMemoryInfo"), "used", None)
    return None if used is None else max(0, int(used) - reserved)


def _external_utilization(ask: NvmlQuery, own: set[int], resting: bool) -> float | None:
    """Utilization by other programs, 0..1. While this run uses the GPU, only some drivers report it."""
    if resting:
        rates = ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else float(rates.gpu) / 100
    samples = ask("nvmlDeviceGetProcessUtilization", 0)  # of the last seconds
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


def _name_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def monitor_external_usage(session: RunContext) -> Callable[[NvmlQuery, int], None]:
    """Add other programs as a pause condition of the run. Call the returned function every few seconds with the NVML
    query and the bytes of this run's allocator.
    """
    others = ExternalGpuMonitor(lambda name: session.warn("pause.other_program", name=name) if name else None)
    session.pause_conditions.append(others.pause_state)
    return lambda ask, reserved: others.update(query_external_usage(ask, reserved, session.is_paused, time.monotonic()))
