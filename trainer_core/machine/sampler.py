"""How the machine is doing: `Sampler` looks at it again and again while something runs.

No torch, no Qt: what torch holds of a GPU's memory comes through a callable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core import files, protocol
from trainer_core.machine import hardware, nvml
from trainer_core.machine.awake import slept_s
from trainer_core.machine.ram import system_memory
from trainer_core.machine.shared_memory import SharedGpuMemory

TorchMemory = Callable[[], tuple[int | str, int, int] | None]
"""(which GPU, bytes allocated, bytes reserved) of this process, or None while it uses no GPU.

Which: CUDA's number of it, or its UUID as torch writes it. The UUID is surer, because CUDA and NVML
number differently where cards differ (CUDA puts the fastest first) or `CUDA_VISIBLE_DEVICES` is set.
"""

_CHILDREN_EVERY_S: Final = 5.0  # looking for child processes means reading the whole process table
_BATTERY_EVERY_S: Final = 10.0
_FIRST_LOOK_S: Final = 0.2  # a share of CPU time needs some time to be measured over

# nvmlClocksEventReason… of nvml.h. Bit 0 (idle) is left out: nothing holds back what has nothing to do.
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


class Sampler:
    """Looks at the machine every `interval_s` seconds, in a thread, and hands each look to `callback`.

    The thread is a daemon and no failure in it, the callback's included, reaches training. `stop` ends it. `library`
    stands in for `pynvml` in tests. `at_gpu` is called at each look with what asks NVML about the GPU that torch uses,
    and with the bytes that torch holds of it. `beside`: the UUIDs, as torch writes them, of the GPUs on which other
    processes of the same run compute; their energy counts too.
    """

    def __init__(
        self,
        callback: Callable[[protocol.Hardware], None],
        interval_s: float,
        run_path: Path,
        torch_memory: TorchMemory | None = None,
        library: Any = None,
        at_gpu: Callable[[Callable[..., Any], int], None] | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self._at_gpu, self._beside = at_gpu, beside
        self._callback, self._interval_s = callback, interval_s
        self._torch_memory, self._library = torch_memory, library
        self._host = _HostWatch(run_path)
        self._used: _GpuWatch | None = None  # the GPU that torch uses
        self._gpus: list[_GpuWatch] = []
        self._shared: SharedGpuMemory | None = None  # made in the thread that asks it
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Change the time between two looks; the next look is at once."""
        self._interval_s = seconds
        self._wake.set()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread. Waits for a look under way, but not for a driver that hangs."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def energy_j(self) -> float | None:
        """Joules that the GPUs in use took since the sampler first saw them, by their own counters (Volta and newer) or
        by the power at each look. None without one, or where one does not tell: the others' sum would be too little.
        """
        gpus = [self._used, *(self._called(uuid) for uuid in self._beside)]
        taken = [gpu.energy_j() if gpu is not None else None for gpu in gpus]
        told = [joules for joules in taken if joules is not None]
        return sum(told) if len(told) == len(taken) else None

    def _called(self, uuid: str) -> _GpuWatch | None:
        return next((gpu for gpu in self._gpus if gpu.is_called(uuid, os.environ)), None)

    def _run(self) -> None:
        wait = min(_FIRST_LOOK_S, self._interval_s)
        with nvml.opened(self._library) as (module, _, _):
            gpus = self._gpus = [_GpuWatch(module, index) for index in nvml.indices(module)]
            self._shared = SharedGpuMemory(os.getpid()) if gpus else None
            while not self._stopping:
                self._wake.wait(wait)
                self._wake.clear()
                if not self._stopping:
                    self._look(gpus)
                wait = self._interval_s

    def _look(self, gpus: list[_GpuWatch]) -> None:
        try:
            holder = self._torch_memory() if self._torch_memory else None
            looks = [gpu.look() for gpu in gpus]
            for gpu, look in zip(gpus, looks, strict=True):
                if holder is not None and gpu.is_called(holder[0], os.environ):
                    look.torch_allocated, look.torch_reserved = holder[1], holder[2]
                    look.shared_used = self._shared.read() if self._shared is not None else None
                    self._used = gpu
                    if self._at_gpu is not None:
                        self._at_gpu(gpu.ask, holder[2])
            self._callback(protocol.Hardware(gpus=looks, host=self._host.look()))
        except Exception:  # a figure that is missing must never end a run; the log tells why it is
            logging.getLogger(__name__).exception("looking at the hardware failed")


class _GpuWatch:
    """One GPU, asked again and again. Its name and UUID are asked once."""

    def __init__(self, module: Any, index: int) -> None:
        self._nvml, self.info = module, hardware.describe(module, index)
        self._handle = nvml.ask(module, "nvmlDeviceGetHandleByIndex", index)
        self._first_mj = self.ask("nvmlDeviceGetTotalEnergyConsumption")  # since the driver was loaded
        self._power_w: float | None = None
        self._joules, self._looked = 0.0, 0.0  # summed up, where there is no such counter

    def energy_j(self) -> float | None:
        """Joules since this object was made; None where nothing tells."""
        now = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        if now is not None and self._first_mj is not None:
            return float(now - self._first_mj) / 1000
        return self._joules if self._power_w is not None else None

    def _sum_up(self, power_w: float) -> None:
        """Energy between two looks, at the mean of their powers."""
        now = time.monotonic()
        if self._power_w is not None:
            self._joules += (now - self._looked) * (power_w + self._power_w) / 2
        self._power_w, self._looked = power_w, now

    def look(self) -> protocol.Gpu:
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        used = self.ask("nvmlDeviceGetUtilizationRates")
        power, limit = self.ask("nvmlDeviceGetPowerUsage"), self.ask("nvmlDeviceGetEnforcedPowerLimit")
        degrees = self.ask("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
        clock = self.ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM
        if power is not None:
            self._sum_up(power / 1000.0)
        return protocol.Gpu(
            index=self.info.index,
            name=self.info.name,
            utilization=None if used is None else used.gpu / 100.0,
            vram_used=nvml.size_of(memory, "used"),
            vram_total=nvml.size_of(memory, "total"),
            power_w=None if power is None else power / 1000.0,
            power_limit_w=None if limit is None else limit / 1000.0,
            temperature_c=None if degrees is None else float(degrees),
            clock_mhz=clock,
            throttle=self._throttle(),
        )

    def _throttle(self) -> list[str]:
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name in drivers before 535
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return [code for bit, code in _THROTTLE.items() if reasons & bit]

    def ask(self, function: str, *arguments: Any) -> Any:
        """What an NVML function says of this GPU; None where it fails."""
        return nvml.ask(self._nvml, function, self._handle, *arguments)

    def is_called(self, which: int | str, environ: Mapping[str, str]) -> bool:
        """Whether CUDA's number, or a UUID, means this GPU."""
        if isinstance(which, int):
            visible = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
            if not visible:
                return which == self.info.index
            if which >= len(visible):
                return False
            which = visible[which]
            if which.isdecimal():
                return int(which) == self.info.index
        plain = which.lower().removeprefix("gpu-")
        return bool(plain) and self.info.uuid.lower().removeprefix("gpu-").startswith(plain)


class _HostWatch:
    """The machine beside its GPUs, and what this process takes of it."""

    def __init__(self, run_path: Path) -> None:
        self._path, self._process = run_path, psutil.Process()
        self._children: list[psutil.Process] = []
        self._children_seen = -_CHILDREN_EVERY_S
        self._cpu_seconds = (0.0, 0.0)
        self._cpu, self._disk_free = 0.0, 0
        self._on_battery: bool | None = None
        self._battery_seen = -_BATTERY_EVERY_S
        self._cpu_share()

    def look(self) -> protocol.Host:
        total, available = system_memory()
        return protocol.Host(
            ram_used=total - available,
            ram_total=total,
            rss=self._resident(),
            cpu=self._cpu_share(),
            disk_free=self._free(),
            on_battery=self._discharging(),
            slept_s=slept_s(),
        )

    def _discharging(self) -> bool | None:
        """Whether a laptop runs without its cable. psutil asks sysfs, GetSystemPowerStatus or their like."""
        now = time.monotonic()
        if now - self._battery_seen >= _BATTERY_EVERY_S:
            self._battery_seen, self._on_battery = now, None
            with contextlib.suppress(Exception):  # broken firmware raises nearly anything
                battery = psutil.sensors_battery()  # the function is missing on some systems
                if battery is not None and battery.power_plugged is not None:
                    self._on_battery = not battery.power_plugged
        return self._on_battery

    def _resident(self) -> int:
        """Of this process and its children. Pages that they share are counted for each."""
        now = time.monotonic()
        if now - self._children_seen >= _CHILDREN_EVERY_S:
            self._children_seen = now
            with contextlib.suppress(psutil.Error):
                self._children = self._process.children(recursive=True)
        total = 0
        for process in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _cpu_share(self) -> float:
        """Of all processors, since the look before; 0..1."""
        with contextlib.suppress(OSError, psutil.Error):  # Windows may refuse its performance counters
            busy, total = _cpu_seconds()
            busy_before, total_before = self._cpu_seconds
            if total > total_before:
                self._cpu = min(1.0, max(0.0, (busy - busy_before) / (total - total_before)))
            self._cpu_seconds = busy, total
        return self._cpu

    def _free(self) -> int:
        with contextlib.suppress(OSError):  # a share that is away for a moment: what it was last
            self._disk_free = files.free_bytes(self._path)
        return self._disk_free


def _cpu_seconds() -> tuple[float, float]:
    """(busy, all) seconds of all processors since they started. Linux counts guests in user time already."""
    times = psutil.cpu_times()._asdict()
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    if sys.platform == "win32":  # interrupt and dpc are part of system time there
        total = times["user"] + times["system"] + times["idle"]
    return total - times["idle"] - times.get("iowait", 0.0), total
