"""Hardware of this machine. Never fails for lack of a GPU. No torch, no Qt."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core.system import nvml
from trainer_core.system.memory import system_memory
from trainer_core.system.nvml import NoGpuReason, NvmlDevice

CUDA_CONTEXT_BYTES: Final = 2**29
"""Approximate bytes of GPU memory that CUDA and its libraries hold per process, outside torch's allocator."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU. `index` is NVML's number; `vram_total` in bytes."""

    index: int
    name: str
    uuid: str
    vram_total: int | None
    compute_capability: tuple[int, int] | None

    @property
    def bf16(self) -> bool | None:
        """Whether it supports bf16 natively (Ampere and newer); None: unknown."""
        return None if self.compute_capability is None else self.compute_capability >= (8, 0)


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Hardware of this machine. Sizes in bytes."""

    gpus: tuple[GpuInfo, ...]
    no_gpu_reason: NoGpuReason | None  # why there are no GPUs
    no_gpu_detail: str  # NVML's message
    driver_version: str | None  # such as 580.65.06
    max_cuda_version: tuple[int, int] | None  # newest CUDA version that the driver supports
    ram_total: int
    ram_available: int
    cpu_name: str
    cpu_cores: int  # physical
    cpu_threads: int  # usable by this process
    platform: str


def probe(library: Any = None) -> MachineInfo:
    """Probe the machine once; about 20 ms. `library` replaces `pynvml` in tests."""
    with nvml.nvml_session(library) as (module, reason, detail):
        gpus = tuple(map(_describe_gpu, nvml.list_devices(module)))
        version = nvml.query(module, "nvmlSystemGetCudaDriverVersion_v2")
        driver = nvml.query(module, "nvmlSystemGetDriverVersion")
    total, available = system_memory()
    return MachineInfo(
        gpus=gpus,
        no_gpu_reason=None if gpus else reason or "no_devices",
        no_gpu_detail=detail,
        driver_version=driver,
        max_cuda_version=(version // 1000, version % 1000 // 10) if version else None,
        ram_total=total,
        ram_available=available,
        cpu_name=cpu_name(),
        cpu_cores=psutil.cpu_count(logical=False) or usable_threads(),
        cpu_threads=usable_threads(),
        platform=platform.platform(),
    )


def _describe_gpu(device: NvmlDevice) -> GpuInfo:
    capability = device.query("nvmlDeviceGetCudaComputeCapability")
    return GpuInfo(
        device.index, device.name, device.uuid, device.memory()[1], tuple(capability) if capability else None
    )


def free_vram(uuid: str, library: Any = None) -> int | None:
    """GPU memory that torch would find free in a new process, without CUDA's own. None: unknown."""
    with nvml.nvml_session(library) as (module, _, _):
        for device in nvml.list_devices(module):
            used, total = device.memory()
            if device.matches(uuid) and used is not None and total is not None:
                return max(0, total - used - CUDA_CONTEXT_BYTES)
    return None


def usable_threads() -> int:
    """Logical processors that this process may use; fewer in a container."""
    allowed = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None  # not on macOS
    return len(allowed or ()) or os.cpu_count() or 1


def cpu_name() -> str:
    """Human-readable processor name."""
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
