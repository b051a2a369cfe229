"""Recommended preset and driver problem of a machine."""

from __future__ import annotations

from app.core.preset_recommendation import driver_problem, recommend_preset
from trainer_core import presets
from trainer_core.system.hardware import GpuInfo, MachineInfo
from trainer_core.system.nvml import NoGpuReason

MIB = 2**20


def gpu(vram_mib: int, name: str = "NVIDIA GeForce RTX", capability: tuple[int, int] = (8, 6)) -> GpuInfo:
    return GpuInfo(0, name, "GPU-0", vram_mib * MIB, capability)


def machine(
    *gpus: GpuInfo,
    ram_gib: float = 31.2,
    cores: int = 8,
    no_gpu: NoGpuReason | None = None,
    driver_cuda: tuple[int, int] | None = (13, 0),
) -> MachineInfo:
    ram = int(ram_gib * 2**30)
    driver = "580.65.06" if gpus else None
    reason = None if gpus else no_gpu or "no_library"
    return MachineInfo(
        gpus, reason, "", driver, driver_cuda if gpus else None, ram, ram // 2, "CPU", cores, 2 * cores, "x"
    )


def test_the_recommended_preset_fits_the_machine() -> None:
    for info, preset in (
        (machine(ram_gib=3.8), "quickstart"),
        (machine(ram_gib=7.8), "cpu"),  # sold as 8 GB
        (machine(ram_gib=15.6), "cpu"),
        (machine(gpu(4096, "NVIDIA GeForce RTX 3050 Laptop GPU")), "gpu_small"),
        (machine(gpu(8188)), "gpu_small"),
        (machine(gpu(10240)), "gpu"),
        (machine(gpu(12282)), "gpu"),
        (machine(gpu(20475)), "gpu"),
        (machine(gpu(24564)), "gpu_large"),
        (machine(gpu(49140)), "gpu_large"),  # too few cores
        (machine(gpu(46068), ram_gib=62.7, cores=16), "a6000"),
        (machine(*[gpu(20475)] * 3, ram_gib=11.7), "pretrain_large"),
        (machine(gpu(143771, capability=(9, 0)), ram_gib=128, cores=16), "a6000"),
    ):
        assert recommend_preset(info) == preset, info
        assert preset in presets.names()


def test_the_gpu_with_the_most_memory_is_used() -> None:
    assert recommend_preset(machine(gpu(8188, "small"), gpu(24564, "large"))) == "gpu_large"


def test_a_gpu_of_unknown_memory_gets_the_smallest_preset() -> None:
    assert recommend_preset(machine(GpuInfo(0, "NVIDIA GeForce RTX", "GPU-0", None, None))) == "gpu_small"


def test_driver_problems_are_detected() -> None:
    for info, gpu_present, problem in (
        (machine(gpu(8188)), True, None),
        (machine(gpu(8188), driver_cuda=(11, 4)), True, "welcome.driver_too_old"),
        (
            machine(gpu(32768, capability=(12, 0)), driver_cuda=(12, 8)),
            True,
            "welcome.driver_too_old",
        ),  # needs CUDA 13
        (machine(gpu(24564, capability=(8, 9)), driver_cuda=(12, 4)), True, None),
        (machine(gpu(4096, capability=(3, 5))), True, "welcome.driver_unsupported_gpu"),
        (machine(), False, None),
        (machine(), True, "welcome.driver_none_installed"),
        (machine(no_gpu="driver_mismatch"), True, "welcome.driver_restart"),
        (machine(no_gpu="driver_not_loaded"), True, "welcome.driver_silent"),
        (machine(no_gpu="driver_not_loaded"), False, None),
        (machine(no_gpu="nvml_error"), False, "welcome.driver_silent"),
        (machine(no_gpu="no_package"), True, "welcome.driver_no_package"),
        (machine(no_gpu="no_devices"), True, "welcome.driver_no_card"),
        (machine(no_gpu="no_devices"), False, None),
    ):
        assert driver_problem(info, gpu_present=gpu_present) == problem, info


def test_an_unusable_gpu_is_ignored() -> None:
    old_driver = machine(gpu(24564), driver_cuda=(11, 4), ram_gib=15.6)
    assert recommend_preset(old_driver) == "cpu"


def test_a_cpu_build_of_torch_is_a_problem_with_a_usable_gpu() -> None:
    usable = machine(gpu(12282))
    assert driver_problem(usable, gpu_present=True, torch_version="2.13.0+cpu") == "welcome.driver_cpu_build"
    assert driver_problem(usable, gpu_present=True, torch_version="2.13.0+cu130") is None
    assert driver_problem(machine(), gpu_present=False, torch_version="2.13.0+cpu") is None
