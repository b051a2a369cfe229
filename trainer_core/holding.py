"""Why a run waits by itself: the clock on the wall, and another program that takes its GPU. No torch, no Qt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import psutil

from trainer_core import schedule
from trainer_core.session import Hold, Session

Ask = Callable[..., Any]
"""Asks NVML about one card: a function's name and what it takes beside the card's handle; None where that fails."""

_MUCH_BYTES: Final = 2**30  # GPU memory beyond what others held all the time
_MUCH_USE: Final = 0.3  # of the GPU's time
_APPEARS_S: Final = 5.0  # a program that is gone sooner is not waited for
_GONE_S: Final = 60.0  # one that comes back sooner was never gone
_LATEST_US: Final = 3_000_000  # older figures are of a program that may have ended
_PROCESSES: Final = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


def by_clock(pause_between: str) -> Callable[[], Hold | None]:
    """Holds work in the spans of a schedule, by the clock as it is at that moment."""
    windows = schedule.parse(pause_between)

    def hold() -> Hold | None:
        end = schedule.pause_ends(windows, datetime.now())
        return None if end is None else Hold("schedule", end.timestamp())

    return hold


class Look(NamedTuple):
    """What other programs take of the GPU at one moment."""

    at: float  # seconds, of a clock that nobody sets
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1; None: it cannot be told apart from what this run causes
    name: str = ""  # of the program that holds the most


class OtherPrograms:
    """Holds work while another program makes much use of the GPU.

    Much is what goes far beyond what others have held since this began: a desktop's memory is no reason. `appeared`
    is called with the program's name, which may be empty.
    """

    def __init__(self, appeared: Callable[[str], None]) -> None:
        self._appeared = appeared
        self._usual: int | None = None  # bytes that others have held at least
        self._since: float | None = None  # when it began to be otherwise than `_busy` says
        self._busy = False

    def hold(self) -> Hold | None:
        return Hold("other_program") if self._busy else None

    def see(self, look: Look) -> None:
        """Take a look into account; they come every few seconds."""
        if look.memory is not None:
            self._usual = look.memory if self._usual is None else min(self._usual, look.memory)
        much_memory = look.memory is not None and look.memory - (self._usual or 0) >= _MUCH_BYTES
        much_use = look.utilization is not None and look.utilization >= _MUCH_USE
        if (much_memory or much_use) == self._busy:
            self._since = None
            return
        self._since = look.at if self._since is None else self._since
        if look.at - self._since >= (_GONE_S if self._busy else _APPEARS_S):
            self._busy, self._since = not self._busy, None
            if self._busy:
                self._appeared(look.name)


def look_for_others(ask: Ask, reserved: int, resting: bool, at: float) -> Look:
    """Ask NVML. `reserved`: bytes that this run's allocator holds; `resting`: this run does not use the GPU."""
    listed = [process for function in _PROCESSES for process in ask(function) or []]
    held = {process.pid: process.usedGpuMemory for process in listed}
    own = {pid for pid in held if _is_own(pid)}
    others = {pid: size for pid, size in held.items() if pid not in own}
    if not own or None in others.values():  # Windows tells no process's memory; containers call us by another number
        return Look(at, _used(ask, reserved), _use_by_others(ask, own, resting))
    largest = max(others, key=lambda pid: int(others[pid]), default=None)
    name = "" if largest is None else _name_of(largest)
    return Look(at, sum(others.values()), _use_by_others(ask, own, resting), name)


def _used(ask: Ask, reserved: int) -> int | None:
    used = getattr(ask("nvmlDeviceGetMemoryInfo"), "used", None)
    return None if used is None else max(0, int(used) - reserved)


def _use_by_others(ask: Ask, own: set[int], resting: bool) -> float | None:
    """Share of the GPU's time. While this run uses it too, only some drivers tell."""
    if resting:
        rates = ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else float(rates.gpu) / 100
    samples = ask("nvmlDeviceGetProcessUtilization", 0)  # those of the last seconds
    if not samples or not own:
        return None
    recent = max(int(sample.timeStamp) for sample in samples) - _LATEST_US
    latest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: int(sample.timeStamp))}
    theirs = [sample for sample in latest.values() if sample.pid not in own and int(sample.timeStamp) >= recent]
    return sum(float(sample.smUtil) for sample in theirs) / 100


def _is_own(pid: int) -> bool:
    """This process, or one that it has started (a compiler tries its work on the GPU too)."""
    try:
        return pid == os.getpid() or os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _name_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def watch_for_others(session: Session) -> Callable[[Ask, int], None]:
    """Makes other programs a reason for this session to wait. Call what comes back every few seconds, with what asks
    NVML and the bytes of the GPU that this run's allocator holds."""
    others = OtherPrograms(lambda name: session.warn("pause.other_program", name=name) if name else None)
    session.holds.append(others.hold)
    return lambda ask, reserved: others.see(look_for_others(ask, reserved, session.resting, time.monotonic()))
