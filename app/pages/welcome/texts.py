"""Texts of the welcome page: hardware, reason for a preset, driver problems."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from app.core.preset_recommendation import DriverProblem, PresetRecommendation
from app.texts import current_language, tr
from app.widgets import formatting

if TYPE_CHECKING:
    from trainer_core.system.hardware import MachineInfo


def format_hardware(machine: MachineInfo | None) -> list[tuple[str, str]]:
    """Return (component, description) rows."""
    titles = (tr("welcome.gpu"), tr("welcome.memory"), tr("welcome.processor"))
    if machine is None:
        return [(title, tr("welcome.looking")) for title in titles]
    total, free = formatting.format_bytes(machine.ram_total), formatting.format_bytes(machine.ram_available)
    cpu = " ".join(machine.cpu_name.split())
    return [
        *((titles[0] if not place else "", text) for place, text in enumerate(_format_gpus(machine))),
        (titles[1], tr("welcome.size_which_free_free", size=total, free=free)),
        (titles[2], tr("welcome.name_count_cores", name=cpu, count=machine.cpu_cores)),
    ]


def _format_gpus(machine: MachineInfo) -> list[str]:
    """Return one line per kind of GPU, with their number."""
    if not machine.gpus:
        return [tr("welcome.no_nvidia_gpu_small_models")]
    kinds: dict[tuple[str, int | None], int] = {}
    for gpu in machine.gpus:
        kinds[gpu.name, gpu.vram_total] = kinds.get((gpu.name, gpu.vram_total), 0) + 1
    one, many = tr("welcome.name_vram_of_vram"), tr("welcome.count_name_vram_vram_each")
    return [
        (one if count == 1 else many).format(count=count, name=name, vram=formatting.format_bytes(vram))
        for (name, vram), count in kinds.items()
    ]


def format_recommendation_reason(machine: MachineInfo, proposal: PresetRecommendation) -> str:
    table = {
        "little_memory": tr("welcome.no_gpu_compute_on_ram"),
        "processor": tr("welcome.there_no_gpu_compute_on"),
        "small_card": tr("welcome.gpu_has_vram_vram_small"),
        "card": tr("welcome.gpu_has_vram_vram_enough"),
        "large_card": tr("welcome.gpu_has_vram_vram_room"),
        "workstation": tr("welcome.gpu_has_vram_vram_cores"),
        "large_little_memory": tr("welcome.gpu_has_vram_vram_but"),
    }
    gpu = proposal.gpu
    said = table[proposal.reason].format(
        gpu=gpu.name if gpu else "",
        vram=formatting.format_bytes(gpu.vram_total if gpu else None),
        ram=formatting.format_bytes(machine.ram_total),
        cores=machine.cpu_cores,
    )
    if not proposal.other_gpus:
        return said
    others = tr("welcome.run_computes_on_one_gpu")
    return f"{said}{others}" if current_language() == "zh" else f"{said} {others}"


def format_driver_problem(kind: DriverProblem, machine: MachineInfo) -> str:
    """Return a driver problem and its remedy."""
    table = {
        "none_installed": tr("welcome.nvidia_card_in_this_machine"),
        "silent": tr("welcome.nvidia_driver_does_not_answer"),
        "restart": tr("welcome.nvidia_driver_was_updated_but"),
        "no_card": tr("welcome.nvidia_driver_there_but_finds"),
        "old": tr("welcome.nvidia_driver_driver_too_old"),
        "too_old_card": tr("welcome.gpu_too_old_for_pytorch"),
        "no_package": tr("welcome.package_nvidia_ml_py_which"),
        "cpu_build": tr("welcome.pytorch_installed_in_build_for"),
    }
    return table[kind].format(
        command="train_gpu.bat setup" if os.name == "nt" else "./train_gpu.sh setup",
        driver=machine.driver_version or "",
        gpu=machine.gpus[0].name if machine.gpus else "",
    )
