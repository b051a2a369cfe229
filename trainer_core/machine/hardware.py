"""What the machine has. Never fails for lack of a GPU. No torch, no Qt."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core.machine import nvml
from trainer_core.machine.nvml import NoGpu
from trainer_core.machine.ram import system_memory

CUDA_CONTEXT: Final = 2**29
"""Bytes of a GPU that CUDA and its libraries hold for a process, outside torch's allocator; a little less, mostly."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as it is. `index` is NVML's number; `vram_total` in bytes."""

    index: int
    name: str
    uuid: str
    vram_total: int | None
    compute_capability: tuple[int, int] | None

    @property
    def bf16(self) -> bool | None:
        """Whether it computes bf16 natively (Ampere and newer); None where its kind is not known."""
        return None if self.compute_capability is None else self.compute_capability >= (8, 0)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine has. Sizes in bytes."""

    gpus: tuple[GpuInfo, ...]
    no_gpu: NoGpu | None  # why there are none
    no_gpu_detail: str  # NVML's own words
    driver: str | None  # such as 580.65.06
    driver_cuda: tuple[int, int] | None  # the newest CUDA that this driver runs
    ram_total: int
    ram_available: int
    cpu_name: str
    cpu_cores: int  # physical
    cpu_threads: int  # that this process may use
    platform: str


def probe(library: Any = None) -> Machine:
    """Look at the machine once; about 20 ms. `library` stands in for `pynvml` in tests."""
    with nvml.opened(library) as (module, reason, detail):
        gpus = tuple(describe(module, index) for index in nvml.indices(module))
        version = nvml.ask(module, "nvmlSystemGetCudaDriverVersion_v2") or nvml.ask(
            module, "nvmlSystemGetCudaDriverVersion"
        )
        driver = nvml.text(nvml.ask(module, "nvmlSystemGetDriverVersion"))
    total, available = system_memory()
    return Machine(
        gpus=gpus,
        no_gpu=None if gpus else reason or "no_devices",
        no_gpu_detail=detail,
        driver=driver or None,
        driver_cuda=(version // 1000, version % 1000 // 10) if version else None,
        ram_total=total,
        ram_available=available,
        cpu_name=cpu_name(),
        cpu_cores=psutil.cpu_count(logical=False) or usable_threads(),
        cpu_threads=usable_threads(),
        platform=platform.platform(),
    )


def free_vram(uuid: str, library: Any = None) -> int | None:
    """Bytes of a GPU's memory that torch would find free in a process that begins now: CUDA's own are taken by then.
    None where the driver does not tell."""
    with nvml.opened(library) as (module, _, _):
        for index in nvml.indices(module):
            gpu = describe(module, index)
            memory = nvml.ask(module, "nvmlDeviceGetMemoryInfo", nvml.ask(module, "nvmlDeviceGetHandleByIndex", index))
            used = nvml.size_of(memory, "used")
            if gpu.uuid.removeprefix("GPU-") == uuid.removeprefix("GPU-") and gpu.vram_total is not None:
                return None if used is None else max(0, gpu.vram_total - used - CUDA_CONTEXT)
    return None


def usable_threads() -> int:
    """Logical processors that this process may run on: in a container often fewer than there are."""
    allowed = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None  # none on macOS
    return len(allowed or ()) or os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name for people."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            import winreg

            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
        else:
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(module: Any, index: int) -> GpuInfo:
    handle = nvml.ask(module, "nvmlDeviceGetHandleByIndex", index)
    memory = nvml.ask(module, "nvmlDeviceGetMemoryInfo", handle)
    capability = nvml.ask(module, "nvmlDeviceGetCudaComputeCapability", handle)
    return GpuInfo(
        index=index,
        name=nvml.text(nvml.ask(module, "nvmlDeviceGetName", handle)) or f"GPU {index}",
        uuid=nvml.text(nvml.ask(module, "nvmlDeviceGetUUID", handle)),
        vram_total=nvml.size_of(memory, "total"),
        compute_capability=tuple(capability) if capability else None,
    )
