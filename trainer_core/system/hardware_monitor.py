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
        torch_memory: TorchMemoryQuery = lambda: None,
        library: Any = None,
        gpu_callback: Callable[[Callable[..., Any], int], None] | None = None,
        other_gpu_uuids: Sequence[str] = (),
    ) -> None:
        self._callback, self._interval_s, self._path = callback, interval_s, run_path
        self._torch_memory, self._library = torch_memory, library
        self._gpu_callback, self._other_gpu_uuids = gpu_callback, other_gpu_uuids
        self._gpus: list[NvmlDevice] = []
        self._torch_gpu: NvmlDevice | None = None
        self._shared: SharedGpuMemoryCounter | None = None  # created in the thread that uses it
        self._process = psutil.Process()
        self._children: list[psutil.Process] = []
        self._on_battery: bool | None = None
        self._refreshed_at = -_REFRESH_EVERY_S
        self._disk_free = 0
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
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def energy_j(self) -> float | None:
        """Joules of the GPUs in use since the first sample; None if any has no energy counter (before Volta)."""
        others = [next((gpu for gpu in self._gpus if gpu.matches(uuid)), None) for uuid in self._other_gpu_uuids]
        joules = [gpu.energy_j() if gpu is not None else None for gpu in (self._torch_gpu, *others)]
        return None if None in joules else sum(filter(None, joules))

    def _run(self) -> None:
        wait = min(_FIRST_SAMPLE_DELAY_S, self._interval_s)
        with nvml.nvml_session(self._library) as (module, _, _):
            _cpu_utilization()  # starts its interval, which psutil keeps per thread
            self._gpus = nvml.list_devices(module)
            self._shared = SharedGpuMemoryCounter(os.getpid()) if self._gpus else None
            while not self._stopping:
                self._wake.wait(wait)
                self._wake.clear()
                if not self._stopping:
                    self._sample()
                wait = self._interval_s

    def _sample(self) -> None:
        try:
            uuid, allocated, reserved = self._torch_memory() or ("", 0, 0)
            samples = [_sample_gpu(gpu) for gpu in self._gpus]
            for gpu, sample in zip(self._gpus, samples, strict=True):
                if gpu.matches(uuid):
                    sample.torch_allocated, sample.torch_reserved = allocated, reserved
                    sample.shared_used = self._shared.read() if self._shared is not None else None
                    self._torch_gpu = gpu
                    if self._gpu_callback is not None:
                        self._gpu_callback(gpu.query, reserved)
            self._callback(protocol.Hardware(gpus=samples, host=self.sample_host()))
        except Exception:  # missing figures must never end a run; logged once
            if not self._failed:
                logging.getLogger(__name__).exception("sampling the hardware failed")
            self._failed = True

    def sample_host(self) -> protocol.Host:
        """Sample the host, and this process's share of it."""
        now = time.monotonic()
        if now - self._refreshed_at >= _REFRESH_EVERY_S:
            self._refreshed_at, self._on_battery = now, _is_on_battery()
            with contextlib.suppress(psutil.Error):
                self._children = self._process.children(recursive=True)
        with contextlib.suppress(OSError):  # keep the last value of a network share that is temporarily unavailable
            self._disk_free = files.free_bytes(self._path)
        rss = 0  # of this process and its children; shared pages count for each
        for process in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
        total, available = system_memory()
        return protocol.Host(
            ram_used=total - available,
            ram_total=total,
            rss=rss,
            cpu=_cpu_utilization(),
            disk_free=self._disk_free,
            on_battery=self._on_battery,
            slept_s=suspended_s(),
        )


def _sample_gpu(gpu: NvmlDevice) -> protocol.Gpu:
    rates = gpu.query("nvmlDeviceGetUtilizationRates")
    power, limit = gpu.query("nvmlDeviceGetPowerUsage"), gpu.query("nvmlDeviceGetEnforcedPowerLimit")
    degrees = gpu.query("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
    used, total = gpu.memory()
    throttled = gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
    if throttled is None:  # name in drivers before 535
        throttled = gpu.query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return protocol.Gpu(
        index=gpu.index,
        name=gpu.name,
        utilization=None if rates is None else rates.gpu / 100.0,
        vram_used=used,
        vram_total=total,
        power_w=None if power is None else power / 1000.0,
        power_limit_w=None if limit is None else limit / 1000.0,
        temperature_c=None if degrees is None else float(degrees),
        clock_mhz=gpu.query("nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
        throttle=[code for bit, code in _THROTTLE.items() if throttled & bit],
    )


def _cpu_utilization() -> float:
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
