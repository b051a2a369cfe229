"""Checks of the GPU, its driver and the torch build."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from trainer_core.messages import Value
from trainer_core.system.doctor import probe_process
from trainer_core.system.doctor.finding import (
    GIB,
    REPAIR_COMMAND,
    SETUP_COMMAND,
    Finding,
    ProbeResults,
    format_gib,
    note,
    ok,
    problem,
)
from trainer_core.system.hardware import MachineInfo

_LIBRARY_NOT_LOADED: Final = (126, 127, 1114)  # WinError


def nvidia_driver_installed() -> bool:
    """Whether an NVIDIA driver seems to be installed, working or not."""
    return bool(shutil.which("nvidia-smi")) or Path("/dev/nvidiactl").exists()


def check_gpus(machine: MachineInfo, installed: bool) -> list[Finding]:
    """Driver and GPUs, or why there are none. `installed`: see `nvidia_driver_installed`."""
    found: list[Finding] = []
    if machine.driver_version and machine.max_cuda_version:
        cuda = _format_version(machine.max_cuda_version)
        found.append(ok("doctor.driver", driver=machine.driver_version, driver_cuda=cuda))
    for gpu in machine.gpus:
        vram = format_gib(gpu.vram_total or 0)
        params: dict[str, Value] = {"index": gpu.index, "name": gpu.name, "vram_gib": vram}
        if gpu.compute_capability is None:
            found.append(ok("doctor.gpu", **params))
        else:
            code = "doctor.gpu_bf16" if gpu.bf16 else "doctor.gpu_fp16"
            found.append(ok(code, **params, capability=_format_version(gpu.compute_capability)))
        if gpu.vram_total is not None and gpu.vram_total < 3.5 * GIB:
            found.append(note("doctor.gpu_small", **params))
    if machine.no_gpu_reason is not None:
        found.append(_no_gpu(machine, installed))
    return found


def _no_gpu(machine: MachineInfo, installed: bool) -> Finding:
    reason = machine.no_gpu_detail
    match machine.no_gpu_reason:
        case "no_devices":
            return note("doctor.no_devices")
        case "driver_mismatch":
            return problem("doctor.driver_restart", reason=reason)
        case "no_package":
            return problem("doctor.package_broken", name="nvidia-ml-py", reason=reason, command=SETUP_COMMAND)
        case "no_library" | "driver_not_loaded" if not installed:
            return Finding("note", "doctor.no_driver", {"command": SETUP_COMMAND}, reason)
        case _:
            return problem("doctor.driver_broken", reason=reason)


def check_torch(results: ProbeResults, ending: str, machine: MachineInfo) -> list[Finding]:
    """The torch build, from the results of the probe process."""
    probed: dict[str, Any] = {}
    for result in results:
        probed.update({key: result[key] for key in ("version", "cuda", "hip", "init", "gpus") if key in result})
    if "version" not in probed:
        return [_import_failure(results[0] if results else {}, ending)]
    version, cuda = probed["version"], probed["cuda"]
    if probed["hip"]:
        return [ok("doctor.torch_other", version=version, build=f"ROCm {probed['hip']}")]
    if cuda is None:
        found = [ok("doctor.torch_cpu", version=version)]
        if machine.driver_version and machine.no_gpu_reason != "no_devices":
            found.append(problem("doctor.torch_is_cpu", driver=machine.driver_version, command=REPAIR_COMMAND))
        return found
    devices = [result for result in results if "name" in result]
    failed = [device for device in devices if not device.get("right")]
    found = [ok("doctor.torch_cuda", version=version, cuda=cuda, gpus=len(devices) - len(failed))]
    if "gpus" not in probed and machine.driver_version is not None:
        found.append(_cuda_unusable(probed, cuda, ending, machine))
    unusable = [(device["name"], device.get("error") or "wrong result") for device in failed]
    if len(devices) < probed.get("gpus", 0):  # the process crashed or hung on this GPU
        unusable.append((f"cuda:{len(devices)}", ending))
    for name, reason in unusable:
        found.append(problem("doctor.gpu_unusable", name=name, reason=reason, command=REPAIR_COMMAND))
    return found


def _import_failure(result: dict[str, Any], ending: str) -> Finding:
    reason = str(result.get("error") or ending)
    if result.get("missing"):
        return problem("doctor.torch_missing", command=REPAIR_COMMAND)
    if (number := result.get("winerror")) in _LIBRARY_NOT_LOADED:
        return problem("doctor.vc_runtime", detail=reason, number=number, command=REPAIR_COMMAND)
    if ending == probe_process.TIMED_OUT:
        return problem("doctor.torch_slow", seconds=int(probe_process.TIMEOUT_S))
    return problem("doctor.torch_broken", reason=reason, command=REPAIR_COMMAND)


def _cuda_unusable(probed: dict[str, Any], cuda: str, ending: str, machine: MachineInfo) -> Finding:
    """Why a CUDA build finds no GPU although there is a driver."""
    supported = machine.max_cuda_version
    if supported and int(cuda.partition(".")[0]) > supported[0]:
        newest = _format_version(supported)
        driver = machine.driver_version
        return problem("doctor.driver_old", driver=driver, driver_cuda=newest, cuda=cuda, command=REPAIR_COMMAND)
    reason = str(probed.get("init", {}).get("error") or ending)
    return problem("doctor.cuda_unusable", cuda=cuda, reason=reason, command=REPAIR_COMMAND)


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
