"""Hardware monitor: samples GPUs and host periodically.

No torch, no Qt: torch's memory comes through a callable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core import protocol
from trainer_core.system import files, nvml
from trainer_core.system.keep_awake import suspended_s
from trainer_core.system.memory import system_memory
from trainer_core.system.nvml import NvmlDevice
from trainer_core.system.shared_gpu_memory import SharedGpuMemoryCounter

TorchMemoryQuery = Callable[[], tuple[str, int, int] | None]
"""Returns (torch's UUID of the GPU, bytes allocated, bytes reserved) of this process, or None if it uses no GPU."""

_REFRESH_EVERY_S: Final = 5.0  # child processes, which reads the whole process table, and the battery
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
        return next((gpu for gpu in self._gpus if gpu.device.matches(uuid)), None)

    def _run(self) -> None:
        wait = min(_FIRST_SAMPLE_DELAY_S, self._interval_s)
        with nvml.nvml_session(self._library) as (module, _, _):
            self._host.cpu_utilization()  # starts its interval, which psutil keeps per thread
            gpus = self._gpus = [_GpuMonitor(device) for device in nvml.list_devices(module)]
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
                if holder is not None and gpu.device.matches(holder[0]):
                    sample.torch_allocated, sample.torch_reserved = holder[1], holder[2]
                    sample.shared_used = self._shared.read() if self._shared is not None else None
                    self._torch_gpu = gpu
                    if self._gpu_callback is not None:
                        self._gpu_callback(gpu.device.query, holder[2])
            self._callback(protocol.Hardware(gpus=samples, host=self._host.sample()))
        except Exception:  # missing figures must never end a run; logged once
            if not self._failed:
                logging.getLogger(__name__).exception("sampling the hardware failed")
            self._failed = True


class _GpuMonitor:
    """Samples one GPU and its energy counter."""

    def __init__(self, device: NvmlDevice) -> None:
        self.device = device
        self._initial_energy_mj = device.query("nvmlDeviceGetTotalEnergyConsumption")  # since the driver was loaded

    def energy_j(self) -> float | None:
        """Joules since this object was created; None if the GPU has no counter."""
        now = self.device.query("nvmlDeviceGetTotalEnergyConsumption")
        return None if now is None or self._initial_energy_mj is None else (now - self._initial_energy_mj) / 1000

    def sample(self) -> protocol.Gpu:
        query = self.device.query
        rates = query("nvmlDeviceGetUtilizationRates")
        power, limit = query("nvmlDeviceGetPowerUsage"), query("nvmlDeviceGetEnforcedPowerLimit")
        degrees = query("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
        used, total = self.device.memory()
        return protocol.Gpu(
            index=self.device.index,
            name=self.device.name,
            utilization=None if rates is None else rates.gpu / 100.0,
            vram_used=used,
            vram_total=total,
            power_w=None if power is None else power / 1000.0,
            power_limit_w=None if limit is None else limit / 1000.0,
            temperature_c=None if degrees is None else float(degrees),
            clock_mhz=query("nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
            throttle=self._throttle(),
        )

    def _throttle(self) -> list[str]:
        reasons = self.device.query("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # name in drivers before 535
            reasons = self.device.query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return [code for bit, code in _THROTTLE.items() if reasons & bit]


class _HostMonitor:
    """The host, and this process's share of it."""

    def __init__(self, run_path: Path) -> None:
        self._path, self._process = run_path, psutil.Process()
        self._children: list[psutil.Process] = []
        self._on_battery: bool | None = None
        self._refreshed_at = -_REFRESH_EVERY_S
        self._disk_free = 0

    def sample(self) -> protocol.Host:
        now = time.monotonic()
        if now - self._refreshed_at >= _REFRESH_EVERY_S:
            self._refreshed_at, self._on_battery = now, _is_on_battery()
            with contextlib.suppress(psutil.Error):
                self._children = self._process.children(recursive=True)
        with contextlib.suppress(OSError):  # keep the last value of a network share that is temporarily unavailable
            self._disk_free = files.free_bytes(self._path)
        total, available = system_memory()
        return protocol.Host(
            ram_used=total - available,
            ram_total=total,
            rss=self._rss(),
            cpu=self.cpu_utilization(),
            disk_free=self._disk_free,
            on_battery=self._on_battery,
            slept_s=suspended_s(),
        )

    def _rss(self) -> int:
        """Of this process and its children. Shared pages count for each."""
        total = 0
        for process in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def cpu_utilization(self) -> float:
        """Utilization of all processors since the last call in this thread, 0..1."""
        with contextlib.suppress(OSError, psutil.Error):  # Windows may refuse its performance counters
            return min(1.0, psutil.cpu_percent() / 100)
        return 0.0


def _is_on_battery() -> bool | None:
    """Whether a laptop runs on battery; None: unknown or no battery."""
    with contextlib.suppress(Exception):  # broken firmware raises nearly anything; missing on some systems
        battery = psutil.sensors_battery()
        if battery is not None and battery.power_plugged is not None:
            return not battery.power_plugged
    return None
