"""How much of a card a run may take."""

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


def test_where_a_driver_would_lend_memory_it_ends_with_the_card(allowed: list[float]) -> None:
    devices.limit_to_vram(CARD)
    assert allowed == [pytest.approx((10 - 300 / 1024) / 12)]


def test_half_of_a_card_is_allowed_whatever_others_hold(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, 12 * GIB))
    devices.limit_to_vram(CARD)
    assert allowed == [0.5]


def test_memory_that_was_moved_out_counts_once(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 11 * GIB)  # more than the card has, with the rest
    devices.limit_to_vram(CARD)
    assert allowed == [1.0]


def test_elsewhere_and_on_a_cpu_nothing_is_limited(allowed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    devices.limit_to_vram(torch.device("cpu"))
    monkeypatch.setattr(devices, "_LENDS", False)
    devices.limit_to_vram(CARD)
    assert allowed == []
