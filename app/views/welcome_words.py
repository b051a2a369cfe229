"""The machine, the reason for a preset, and what is wrong with a driver: the words of the welcome."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication

from app.state.proposing import DriverTrouble, Proposal
from app.views import words

if TYPE_CHECKING:
    from trainer_core.machine.hardware import Machine


def facts(machine: Machine | None) -> list[tuple[str, str]]:
    """The machine in words: what, and how much of it."""
    titles = (
        QCoreApplication.translate("Welcome", "GPU"),
        QCoreApplication.translate("Welcome", "Memory"),
        QCoreApplication.translate("Welcome", "Processor"),
    )
    if machine is None:
        looking = QCoreApplication.translate("Welcome", "Looking…")
        return [(title, looking) for title in titles]
    memory = QCoreApplication.translate("Welcome", "{size}, of which {free} are free")
    cores = QCoreApplication.translate("Welcome", "{name}, {count} cores")
    return [
        *((titles[0] if not place else "", text) for place, text in enumerate(_cards(machine))),
        (titles[1], memory.format(size=words.size(machine.ram_total), free=words.size(machine.ram_available))),
        (titles[2], cores.format(name=" ".join(machine.cpu_name.split()), count=machine.cpu_cores)),
    ]


def _cards(machine: Machine) -> list[str]:
    """Each kind of card once, with how many there are."""
    if not machine.gpus:
        return [QCoreApplication.translate("Welcome", "No NVIDIA GPU: small models train on the processor")]
    kinds: dict[tuple[str, int | None], int] = {}
    for gpu in machine.gpus:
        kinds[gpu.name, gpu.vram_total] = kinds.get((gpu.name, gpu.vram_total), 0) + 1
    one, many = (
        QCoreApplication.translate("Welcome", "{name}, {vram} of VRAM"),
        QCoreApplication.translate("Welcome", "{count} × {name}, {vram} of VRAM each"),
    )
    return [
        (one if count == 1 else many).format(count=count, name=name, vram=words.size(vram))
        for (name, vram), count in kinds.items()
    ]


def reason(machine: Machine, proposal: Proposal) -> str:
    """Why this preset."""
    table = {
        "little_memory": QCoreApplication.translate(
            "Welcome", "No GPU to compute on and {ram} of memory: the smallest model fits anywhere."
        ),
        "processor": QCoreApplication.translate(
            "Welcome", "There is no GPU to compute on, and {ram} of memory are enough for this model."
        ),
        "small_card": QCoreApplication.translate(
            "Welcome", "The {gpu} has {vram} of VRAM: a small model and small batches fit."
        ),
        "card": QCoreApplication.translate(
            "Welcome", "The {gpu} has {vram} of VRAM: enough for this model and its batches."
        ),
        "large_card": QCoreApplication.translate("Welcome", "The {gpu} has {vram} of VRAM: room for a larger model."),
        "workstation": QCoreApplication.translate(
            "Welcome", "The {gpu} has {vram} of VRAM, and {cores} cores and {ram} of memory feed it."
        ),
        "large_little_memory": QCoreApplication.translate(
            "Welcome", "The {gpu} has {vram} of VRAM, but {ram} of memory are little: this preset spares them."
        ),
    }
    gpu = proposal.gpu
    said = table[proposal.reason].format(
        gpu=gpu.name if gpu else "",
        vram=words.size(gpu.vram_total if gpu else None),
        ram=words.size(machine.ram_total),
        cores=machine.cpu_cores,
    )
    if not proposal.others:
        return said
    others = QCoreApplication.translate(
        "Welcome", "A run computes on one GPU; “Device” among all settings says on which."
    )
    return f"{said}{others}" if words.language() == "zh" else f"{said} {others}"


def trouble(kind: DriverTrouble, machine: Machine) -> str:
    """What keeps a card from being used, and what to do."""
    table = {
        "none_installed": QCoreApplication.translate(
            "Welcome",
            "An NVIDIA card is in this machine, but its driver is not installed. "
            "Install it from https://www.nvidia.com/drivers, then run “{command}”.",
        ),
        "silent": QCoreApplication.translate(
            "Welcome",
            "The NVIDIA driver does not answer. Restart the computer; if that changes nothing, install it anew.",
        ),
        "restart": QCoreApplication.translate(
            "Welcome", "The NVIDIA driver was updated, but the old one still runs. Restart the computer."
        ),
        "no_card": QCoreApplication.translate(
            "Welcome",
            "The NVIDIA driver is there, but finds no card. Check that the card is seated, powered and not disabled.",
        ),
        "old": QCoreApplication.translate(
            "Welcome",
            "The NVIDIA driver {driver} is too old for training on this card. "
            "Update it from https://www.nvidia.com/drivers, then run “{command}”.",
        ),
        "too_old_card": QCoreApplication.translate(
            "Welcome", "The {gpu} is too old for PyTorch. Training uses the processor."
        ),
        "no_package": QCoreApplication.translate(
            "Welcome", "The package nvidia-ml-py, which tells of GPUs, cannot be loaded. Run “{command}”."
        ),
        "cpu_build": QCoreApplication.translate(
            "Welcome", "PyTorch is installed in a build for the processor, so the GPU stays idle. Run “{command}”."
        ),
    }
    return table[kind].format(
        command="train_gpu.bat setup" if os.name == "nt" else "./train_gpu.sh setup",
        driver=machine.driver or "",
        gpu=machine.gpus[0].name if machine.gpus else "",
    )
