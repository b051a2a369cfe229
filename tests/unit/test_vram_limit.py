"""Limit of VRAM use."""

from __future__ import annotations

import pytest
import torch

from trainer_core.train import device as devices

GIB = 2**30
CARD = torch.device("cuda", 0)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A card of 12 GiB of which other programs hold 2 and we 1, with a driver that lends; the shares it is told."""
    told: list[float] = []
    monkeypatch.setattr(devices, "_LENDS", True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GIB, 12 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append(share))
    return told


def test_memory_is_limited_to_the_card_if_the_driver_uses_system_memory(allowed: list[float]) -> None:
    devices.limit_to_vram(CARD)
    assert allowed == [pytest.approx((10 - 300 / 1024) / 12)]


def test_at_least_half_of_the_card_is_allowed(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, 12 * GIB))
    devices.limit_to_vram(CARD)
    assert allowed == [0.5]


def test_evicted_memory_counts_once(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 11 * GIB)  # more than the card has, with the rest
    devices.limit_to_vram(CARD)
    assert allowed == [1.0]


def test_other_systems_and_cpus_have_no_limit(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    devices.limit_to_vram(torch.device("cpu"))
    monkeypatch.setattr(devices, "_LENDS", False)
    devices.limit_to_vram(CARD)
    assert allowed == []
