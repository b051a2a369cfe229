"""The preset to begin with on a machine, and why; and what keeps its NVIDIA card from being used. No Qt.

The borders are those that the presets name in `fits`. Codes, never prose: the view words them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from trainer_core.machine.hardware import GpuInfo, Machine

Reason = Literal["little_memory", "processor", "small_card", "card", "large_card", "workstation", "large_little_memory"]
DriverTrouble = Literal[
    "none_installed", "silent", "restart", "no_card", "old", "too_old_card", "no_package", "cpu_build"
]

_GIB: Final = 2**30
_NEW_CARD: Final = (10, 0)  # compute capability from which CUDA 13 is needed
_OLDEST_CARD: Final = (5, 0)  # what the builds of torch still know
_TORCH_CUDA: Final = (12, 0)  # the oldest driver that a build of torch is for: 12.x


@dataclass(frozen=True, slots=True)
class Proposal:
    """A preset and its reason. `gpu`: the card that it is for; None: the processor."""

    preset: str
    reason: Reason
    gpu: GpuInfo | None = None
    others: int = 0  # further cards, which a run leaves alone


def propose(machine: Machine) -> Proposal:
    """The preset for the best usable card, else for the processor."""
    gpus = usable(machine)
    ram = nominal(machine.ram_total)
    if not gpus:
        return Proposal("cpu", "processor") if ram >= 7 else Proposal("quickstart", "little_memory")
    best = max(gpus, key=lambda gpu: gpu.vram_total or 0)
    preset, reason = _for_card(nominal(best.vram_total or 0), ram, machine.cpu_cores)
    return Proposal(preset, reason, best, len(gpus) - 1)


def _for_card(vram: int, ram: int, cores: int) -> tuple[str, Reason]:
    """By VRAM and RAM in GiB."""
    if vram < 10:
        return "gpu_small", "small_card"
    if vram >= 19 and ram < 16:
        return "pretrain_large", "large_little_memory"
    if vram <= 20:
        return "gpu", "card"
    if vram >= 44 and ram >= 31 and cores >= 16:  # 48 GB with error correction shows as 45
        return "a6000", "workstation"
    return "gpu_large", "large_card"


def nominal(size: int) -> int:
    """Bytes as the number on the box: 12 for a card that shows 11.99 GiB, 8 for 7.8 GiB of RAM."""
    return round(size / _GIB)


def usable(machine: Machine) -> list[GpuInfo]:
    """The cards that a build of torch computes on with this driver."""
    return [gpu for gpu in machine.gpus if trouble_of(machine, gpu) is None]


def trouble_of(machine: Machine, gpu: GpuInfo) -> DriverTrouble | None:
    """What keeps a card from computing, as far as the driver tells; None: nothing known."""
    newest, card = machine.driver_cuda, gpu.compute_capability
    if card is not None and card < _OLDEST_CARD:
        return "too_old_card"
    if newest is not None and (newest < _TORCH_CUDA or (card is not None and card >= _NEW_CARD and newest < (13, 0))):
        return "old"
    return None


def driver_trouble(machine: Machine, *, card_seen: bool, torch: str = "") -> DriverTrouble | None:
    """Why cards are not used; None where there is nothing to put right.

    `card_seen`: an NVIDIA card is in this machine, whatever its driver says. `torch`: its version: `2.13.0+cpu`.
    """
    if machine.gpus:
        if not usable(machine):
            return trouble_of(machine, machine.gpus[0])
        return "cpu_build" if torch.endswith("+cpu") else None
    match machine.no_gpu:
        case "no_package":
            return "no_package" if card_seen else None
        case "driver_mismatch":
            return "restart"
        case "nvml_error":
            return "silent"
        case "driver_not_loaded":
            return "silent" if card_seen else None
        case "no_library":
            return "none_installed" if card_seen else None
        case _:
            return "no_card" if card_seen else None
