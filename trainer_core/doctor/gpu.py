"""The GPU, its driver, and the torch build beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from trainer_core.doctor import child
from trainer_core.doctor.finding import GIB, Answers, Finding, gib, launcher, note, ok, problem
from trainer_core.machine.hardware import Machine
from trainer_core.messages import Value

_LIBRARY_NOT_LOADED: Final = (126, 127, 1114)


def nvidia_installed() -> bool:
    """Whether an NVIDIA driver seems to be installed, whatever it answers."""
    return bool(shutil.which("nvidia-smi")) or Path("/dev/nvidiactl").exists()


def look_at_gpus(machine: Machine, installed: bool) -> list[Finding]:
    """Driver and cards, or why there are none."""
    found: list[Finding] = []
    if machine.driver and machine.driver_cuda:
        found.append(ok("doctor.driver", driver=machine.driver, driver_cuda=_dotted(machine.driver_cuda)))
    for gpu in machine.gpus:
        vram = gib(gpu.vram_total or 0)
        about: dict[str, Value] = {"index": gpu.index, "name": gpu.name, "vram_gib": vram}
        if gpu.compute_capability is None:
            found.append(ok("doctor.gpu", **about))
        else:
            code = "doctor.gpu_bf16" if gpu.bf16 else "doctor.gpu_fp16"
            found.append(ok(code, **about, capability=_dotted(gpu.compute_capability)))
        if gpu.vram_total is not None and gpu.vram_total < 3.5 * GIB:
            found.append(note("doctor.gpu_small", **about))
    if machine.no_gpu is not None:
        found.append(_no_gpu(machine, installed))
    return found


def _no_gpu(machine: Machine, installed: bool) -> Finding:
    reason = machine.no_gpu_detail
    match machine.no_gpu:
        case "no_devices":
            return note("doctor.no_devices")
        case "driver_mismatch":
            return problem("doctor.driver_restart", reason=reason)
        case "no_package":
            return problem("doctor.package_broken", name="nvidia-ml-py", reason=reason, command=f"{launcher()} setup")
        case "no_library" | "driver_not_loaded" if not installed:
            return Finding("note", "doctor.no_driver", {"command": f"{launcher()} setup"}, reason)
        case _:
            return problem("doctor.driver_broken", reason=reason)


def suggested_build(machine: Machine) -> str | None:
    """The torch build for this driver and its best card, as `setup --torch` calls it; None: none fits.

    A driver runs every CUDA of its major version:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    CUDA 13 builds start at compute capability 7.5, the CUDA 12.6 build ends at 9.0 (PyTorch's RELEASE.md).
    """
    best = max((gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability), default=None)
    if machine.driver_cuda is None:
        return None
    if machine.driver_cuda >= (13, 0) and (best is None or best >= (7, 5)):
        return "cu130"
    if machine.driver_cuda >= (12, 0) and (best is None or best < (10, 0)):
        return "cu126"
    return None


def repair_command(machine: Machine) -> str:
    """The set-up command that installs the torch build for this machine."""
    return f"{launcher()} setup --torch {suggested_build(machine) or 'auto'}"


def look_at_torch(answers: Answers, ending: str, machine: Machine) -> list[Finding]:
    """From the answers of the child that imported torch."""
    said: dict[str, Any] = {}
    for answer in answers:
        said.update({key: value for key, value in answer.items() if key in ("version", "cuda", "hip", "init", "gpus")})
    if "version" not in said:
        return [_import_failure(answers[0] if answers else {}, ending, machine)]
    version, cuda = said["version"], said["cuda"]
    if said["hip"]:
        return [ok("doctor.torch_other", version=version, build=f"ROCm {said['hip']}")]
    if cuda is None:
        found = [ok("doctor.torch_cpu", version=version)]
        if machine.driver and machine.no_gpu != "no_devices":
            found.append(problem("doctor.torch_is_cpu", driver=machine.driver, command=repair_command(machine)))
        return found
    devices = [answer for answer in answers if "name" in answer]
    found = [ok("doctor.torch_cuda", version=version, cuda=cuda, gpus=sum(bool(each.get("right")) for each in devices))]
    if "gpus" not in said:
        found += _no_cuda(said, cuda, ending, machine)
    for device in devices:
        if not device.get("right"):
            reason = device.get("error") or "wrong result"
            command = repair_command(machine)
            found.append(problem("doctor.gpu_unusable", name=device["name"], reason=reason, command=command))
    if len(devices) < said.get("gpus", 0):  # it died or hung while computing
        name = f"cuda:{len(devices)}"
        found.append(problem("doctor.gpu_unusable", name=name, reason=ending, command=repair_command(machine)))
    return found


def _import_failure(answer: dict[str, Any], ending: str, machine: Machine) -> Finding:
    command = repair_command(machine)
    reason = str(answer.get("error") or ending)
    if answer.get("missing"):
        return problem("doctor.torch_missing", command=command)
    number = answer.get("winerror")
    if number in _LIBRARY_NOT_LOADED:
        return problem("doctor.vc_runtime", detail=reason, number=number, command=command)
    if ending == child.TOO_SLOW:
        return problem("doctor.torch_slow", seconds=int(child.SECONDS))
    return problem("doctor.torch_broken", reason=reason, command=command)


def _no_cuda(said: dict[str, Any], cuda: str, ending: str, machine: Machine) -> list[Finding]:
    """Why a CUDA build finds no GPU. Without a driver that is as it must be."""
    if machine.driver is None:
        return []
    command = repair_command(machine)
    if machine.driver_cuda and int(cuda.partition(".")[0]) > machine.driver_cuda[0]:
        newest = _dotted(machine.driver_cuda)
        return [problem("doctor.driver_old", driver=machine.driver, driver_cuda=newest, cuda=cuda, command=command)]
    reason = str(said.get("init", {}).get("error") or ending)
    return [problem("doctor.cuda_unusable", cuda=cuda, reason=reason, command=command)]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
