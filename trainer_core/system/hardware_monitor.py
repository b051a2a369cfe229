"""Hardware monitor: samples GPUs and host periodically.

No torch, no Qt: torch's memory comes through a callable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core import protocol
from trainer_core.system import files, hardware, nvml
from trainer_core.system.keep_awake import suspended_s
from trainer_core.system.memory import system_memory
from trainer_core.system.shared_gpu_memory import SharedGpuMemoryCounter

TorchMemoryQuery = Callable[[], tuple[str, int, int] | None]
"""Returns (torch's UUID of the GPU, bytes allocated, bytes reserved) of this process, or None if it uses no GPU."""

_CHILDREN_EVERY_S: Final = 5.0  # listing child processes reads the whole process table
_BATTERY_EVERY_S: Final = 10.0
_FIRST_SAMPLE_DELAY_S: Final = 0.2  # CPU utilization needs an interval

# nvmlClocksEventReason... of nvml.h. Bit 0 (idle) is omitted.
_THROTTLE: Final = {
    0x002: "clock_setting",
    0x004: "power",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hw_thermal",
    0x080: "power_brake",
    0x100: "display_clock",
}


class HardwareMonitor:
    """Samples the machine every `interval_s` seconds in a thread and passes each sample to `callback`.

    The thread is a daemon; no failure in it, including the callback's, reaches training. `stop` ends it. `library`
    replaces `pynvml` in tests. `gpu_callback` receives the NVML query of torch's GPU and the bytes that torch holds.
    `other_gpu_uuids`: GPUs of the run's other processes (torch's UUIDs), whose energy counts too.
    """

    def __init__(
        self,
        callback: Callable[[protocol.Hardware], None],
        interval_s: float,
        run_path: Path,
        torch_memory: TorchMemoryQuery | None = None,
        library: Any = None,
        gpu_callback: Callable[[Callable[..., Any], int], None] | None = None,
        other_gpu_uuids: Sequence[str] = (),
    ) -> None:
        self._gpu_callback, self._other_gpu_uuids = gpu_callback, other_gpu_uuids
        self._callback, self._interval_s = callback, interval_s
        self._torch_memory, self._library = torch_memory, library
        self._host = _HostMonitor(run_path)
        self._torch_gpu: _GpuMonitor | None = None  # the GPU of torch
        self._gpus: list[_GpuMonitor] = []
        self._shared: SharedGpuMemoryCounter | None = None  # created in the thread that uses it
        self._wake, self._stopping, self._failed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Change the interval; the next sample is immediate."""
        self._interval_s = seconds
        self._wake.set()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread. Waits for the current sample, but not for a hanging driver."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def energy_j(self) -> float | None:
        """Joules of the GPUs in use since the first sample; None if any has no energy counter (before Volta)."""
        gpus = [self._torch_gpu, *(self._find_gpu(uuid) for uuid in self._other_gpu_uuids)]
        joules = [gpu.energy_j() if gpu is not None else None for gpu in gpus]
        return None if None in joules else sum(filter(None, joules))

    def _find_gpu(self, uuid: str) -> _GpuMonitor | None:
        return next((gpu for gpu in self._gpus if gpu.matches(uuid)), None)

    def _run(self) -> None:
        wait = min(_FIRST_SAMPLE_DELAY_S, self._interval_s)
        with nvml.nvml_session(self._library) as (module, _, _):
            gpus = self._gpus = [_GpuMonitor(module, index) for index in nvml.gpu_indices(module)]
            self._shared = SharedGpuMemoryCounter(os.getpid()) if gpus else None
            while not self._stopping:
                self._wake.wait(wait)
                self._wake.clear()
                if not self._stopping:
                    self._sample(gpus)
                wait = self._interval_s

    def _sample(self, gpus: list[_GpuMonitor]) -> None:
        try:
            holder = self._torch_memory() if self._torch_memory else None
            samples = [gpu.sample() for gpu in gpus]
            for gpu, sample in zip(gpus, samples, strict=True):
                if holder is not None and gpu.matches(holder[0]):
                    sample.torch_allocated, sample.torch_reserved = holder[1], holder[2]
                    sample.shared_used = self._shared.read() if self._shared is not None else None
                    self._torch_gpu = gpu
                    if self._gpu_callback is not None:
                        self._gpu_callback(gpu.query, holder[2])
            self._callback(protocol.Hardware(gpus=samples, host=self._host.sample()))
        except Exception:  # missing figures must never end a run; logged once
            if not self._failed:
                logging.getLogger(__name__).exception("sampling the hardware failed")
            self._failed = True


class _GpuMonitor:
    """One GPU. Name and UUID are queried once."""

    def __init__(self, module: Any, index: int) -> None:
        self._nvml, self.info = module, hardware.gpu_info(module, index)
        self._handle = nvml.query(module, "nvmlDeviceGetHandleByIndex", index)
        self._initial_energy_mj = self.query("nvmlDeviceGetTotalEnergyConsumption")  # since the driver was loaded

    def energy_j(self) -> float | None:
        """Joules since this object was created; None if the GPU has no counter."""
        now = self.query("nvmlDeviceGetTotalEnergyConsumption")
        return None if now is None or self._initial_energy_mj is None else (now - self._initial_energy_mj) / 1000

    def sample(self) -> protocol.Gpu:
        memory = self.query("nvmlDeviceGetMemoryInfo")
        used = self.query("nvmlDeviceGetUtilizationRates")
        power, limit = self.query("nvmlDeviceGetPowerUsage"), self.query("nvmlDeviceGetEnforcedPowerLimit")
        degrees = self.query("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
        clock = self.query("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM
        return protocol.Gpu(
            index=self.info.index,
            name=self.info.name,
            utilization=None if used is None else used.gpu / 100.0,
            vram_used=nvml.memory_field(memory, "used"),
            vram_total=nvml.memory_field(memory, "total"),
            power_w=None if power is None else power / 1000.0,
            power_limit_w=None if limit is None else limit / 1000.0,
            temperature_c=None if degrees is None else float(degrees),
            clock_mhz=clock,
            throttle=self._throttle(),
        )

    def _throttle(self) -> list[str]:
        reasons = self.query("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # name in drivers before 535
            reasons = self.query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return [code for bit, code in _THROTTLE.items() if reasons & bit]

    def query(self, function: str, *arguments: Any) -> Any:
        """Result of an NVML function for this GPU; None if it fails."""
        return nvml.query(self._nvml, function, self._handle, *arguments)

    def matches(self, uuid: str) -> bool:
        """Whether torch's UUID, which has no prefix, denotes this GPU."""
        plain = uuid.lower().removeprefix("gpu-")
        return bool(plain) and self.info.uuid.lower().removeprefix("gpu-").startswith(plain)


class _HostMonitor:
    """The host, and this process's share of it."""

    def __init__(self, run_path: Path) -> None:
        self._path, self._process = run_path, psutil.Process()
        self._children: list[psutil.Process] = []
        self._children_read_at = -_CHILDREN_EVERY_S
        self._cpu_seconds = (0.0, 0.0)
        self._cpu, self._disk_free = 0.0, 0
        self._on_battery: bool | None = None
        self._battery_read_at = -_BATTERY_EVERY_S
        self._cpu_share()

    def sample(self) -> protocol.Host:
        total, available = system_memory()
        return protocol.Host(
            ram_used=total - available,
            ram_total=total,
            rss=self._rss(),
            cpu=self._cpu_share(),
            disk_free=self._read_disk_free(),
            on_battery=self._read_on_battery(),
            slept_s=suspended_s(),
        )

    def _read_on_battery(self) -> bool | None:
        """Whether a laptop runs on battery."""
        now = time.monotonic()
        if now - self._battery_read_at >= _BATTERY_EVERY_S:
            self._battery_read_at, self._on_battery = now, None
            with contextlib.suppress(Exception):  # broken firmware raises nearly anything
                battery = psutil.sensors_battery()  # missing on some systems
                if battery is not None and battery.power_plugged is not None:
                    self._on_battery = not battery.power_plugged
        return self._on_battery

    def _rss(self) -> int:
        """Of this process and its children. Shared pages count for each."""
        now = time.monotonic()
        if now - self._children_read_at >= _CHILDREN_EVERY_S:
            self._children_read_at = now
            with contextlib.suppress(psutil.Error):
                self._children = self._process.children(recursive=True)
        total = 0
        for process in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _cpu_share(self) -> float:
        """Utilization of all processors since the last sample, 0..1."""
        with contextlib.suppress(OSError, psutil.Error):  # Windows may refuse its performance counters
            busy, total = _cpu_seconds()
            busy_before, total_before = self._cpu_seconds
            if total > total_before:
                self._cpu = min(1.0, max(0.0, (busy - busy_before) / (total - total_before)))
            self._cpu_seconds = busy, total
        return self._cpu

    def _read_disk_free(self) -> int:
        with contextlib.suppress(OSError):  # keep the last value of a network share that is temporarily unavailable
            self._disk_free = files.free_bytes(self._path)
        return self._disk_free


def _cpu_seconds() -> tuple[float, float]:
    """(busy, total) seconds of all processors since boot. Linux includes guests in user time."""
    times = psutil.cpu_times()._asdict()
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    if sys.platform == "win32":  # interrupt and dpc are part of system time on Windows
        total = times["user"] + times["system"] + times["idle"]
    return total - times["idle"] - times.get("iowait", 0.0), total
