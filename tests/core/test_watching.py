"""While it trains, a run looks at the GPUs of all its ranks. The GPUs are stood in for."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.test_hardware import Metered
from trainer_core.config import Config
from trainer_core.run_context import RunContext
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.train import build
from trainer_core.wire import EventDispatcher


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> Metered:
    nvml = Metered([200, 10_000, 50_000])
    uuids = [SimpleNamespace(uuid=f"{card}a0b1c2d-0000") for card in range(3)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: uuids[device.index])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7)
    monkeypatch.setattr(build, "HardwareMonitor", partial(HardwareMonitor, library=nvml))
    return nvml


def energy(path: Path, device: str, ranks: int) -> float | None:
    """Joules that a run on so many cards tells of after half a second."""
    job: Any = SimpleNamespace(run_context=RunContext(EventDispatcher()))
    trainer: Any = SimpleNamespace(
        device=torch.device(device),
        ranks=SimpleNamespace(size=ranks),
        config=Config(hardware_interval_s=0.1),
        run_dir=SimpleNamespace(path=path),
        reports=SimpleNamespace(energy=lambda: None),
    )
    with build._monitoring(job, trainer):
        time.sleep(1.0)
        told: float | None = trainer.reports.energy()
    return told


def test_energy_is_that_of_the_cards_of_all_ranks(three_gpus: Metered, tmp_path: Path) -> None:
    alone, two, three = (energy(tmp_path, "cuda:0", ranks) for ranks in (1, 2, 3))
    assert alone == 0.0
    assert two is not None
    assert two > 2_000
    assert three is not None
    assert three > 20_000
    of_others = energy(tmp_path, "cuda:1", 2)
    assert of_others is not None
    assert of_others > 20_000


def test_on_a_cpu_no_card_counts(three_gpus: Metered, tmp_path: Path) -> None:
    assert energy(tmp_path, "cpu", 2) is None
