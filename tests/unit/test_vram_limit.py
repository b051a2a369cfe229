"""VRAM limit of the process."""

from __future__ import annotations

import pytest
import torch

from trainer_core.train import device as devices

GIB = 2**30
GPU = torch.device("cuda", 0)


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Recorded arguments of `set_per_process_memory_fraction`.

    12 GiB of VRAM, of which other programs use 2 GiB and torch 1 GiB. The driver uses system memory when VRAM is full.
    """
    recorded: list[float] = []
    monkeypatch.setattr(devices, "_SPILLS_TO_SYSTEM_MEMORY", True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GIB, 12 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GIB)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: recorded.append(fraction)
    )
    return recorded


def test_memory_is_limited_to_free_vram_if_the_driver_uses_system_memory(fractions: list[float]) -> None:
    devices.limit_to_vram(GPU)
    assert fractions == [pytest.approx((10 - 300 / 1024) / 12)]


def test_at_least_half_of_the_vram_is_allowed(fractions: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, 12 * GIB))
    devices.limit_to_vram(GPU)
    assert fractions == [0.5]


def test_the_limit_is_at_most_the_vram_of_the_gpu(fractions: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    # Reserved memory includes evicted memory, so that reserved plus free exceeds the total.
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 11 * GIB)
    devices.limit_to_vram(GPU)
    assert fractions == [1.0]


def test_other_systems_and_cpus_have_no_limit(fractions: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    devices.limit_to_vram(torch.device("cpu"))
    monkeypatch.setattr(devices, "_SPILLS_TO_SYSTEM_MEMORY", False)
    devices.limit_to_vram(GPU)
    assert fractions == []
