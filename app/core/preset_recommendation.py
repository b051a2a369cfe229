"""Recommends a preset for the hardware, and detects why an NVIDIA card cannot be used. No Qt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainer_core.system.hardware import GpuInfo, MachineInfo

_GIB: Final = 2**30
_CUDA_13_MIN_CAPABILITY: Final = (10, 0)  # compute capability that requires CUDA 13
_MIN_CAPABILITY: Final = (5, 0)  # minimum of torch's builds
_MIN_DRIVER_CUDA: Final = (12, 0)  # oldest driver with a torch build: 12.x


def recommend_preset(machine: MachineInfo) -> str:
    """Name of the preset for the best usable card, otherwise for the CPU.

    The limits are those in `fits` of the presets. Presets to fine-tune are left out: they download a model.
    """
    gpus = usable_gpus(machine)
    ram = _nominal_gib(machine.ram_total)
    if not gpus:
        return "cpu" if ram >= 7 else "quickstart"
    vram = _nominal_gib(max(gpu.vram_total or 0 for gpu in gpus))
    if vram < 10:
        return "gpu_small"
    if vram >= 19 and ram < 16:
        return "pretrain_large"
    if vram <= 20:
        return "gpu"
    if vram >= 44 and ram >= 31 and machine.cpu_cores >= 16:  # 48 GB with ECC are reported as 45
        return "a6000"
    return "gpu_large"


def _nominal_gib(size: int) -> int:
    """Nominal size of memory: 12 for 11.99 GiB of VRAM, 8 for 7.8 GiB of RAM."""
    return round(size / _GIB)


def usable_gpus(machine: MachineInfo) -> list[GpuInfo]:
    """Cards that a torch build supports with this driver."""
    return [gpu for gpu in machine.gpus if gpu_problem(machine, gpu) is None]


def gpu_problem(machine: MachineInfo, gpu: GpuInfo) -> str | None:
    """Key of the text why a card cannot be used; None: no known problem."""
    newest, card = machine.max_cuda_version, gpu.compute_capability
    if card is not None and card < _MIN_CAPABILITY:
        return "welcome.driver_unsupported_gpu"
    if newest is not None and (
        newest < _MIN_DRIVER_CUDA or (card is not None and card >= _CUDA_13_MIN_CAPABILITY and newest < (13, 0))
    ):
        return "welcome.driver_too_old"
    return None


def driver_problem(machine: MachineInfo, *, gpu_present: bool, torch_version: str = "") -> str | None:
    """Key of the text why no card is used; None if nothing can be done about it.

    `gpu_present`: the machine has an NVIDIA card, whatever the driver reports. `torch_version`: such as `2.13.0+cpu`.
    """
    if machine.gpus:
        if not usable_gpus(machine):
            return gpu_problem(machine, machine.gpus[0])
        return "welcome.driver_cpu_build" if torch_version.endswith("+cpu") else None
    match machine.no_gpu_reason:
        case "driver_mismatch":
            return "welcome.driver_restart"
        case "nvml_error":
            return "welcome.driver_silent"
        case _ if not gpu_present:
            return None
        case "no_package":
            return "welcome.driver_no_package"
        case "driver_not_loaded":
            return "welcome.driver_silent"
        case "no_library":
            return "welcome.driver_none_installed"
        case _:
            return "welcome.driver_no_card"
