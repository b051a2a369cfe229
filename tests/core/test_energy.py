"""A run measures the energy of the GPUs of all its ranks. The GPUs are simulated."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.fake_nvml import EnergyNvml
from tests.waiting import wait_until
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.run_context import RunContext
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.train import build
from trainer_core.wire import EventDispatcher


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> EnergyNvml:
    nvml = EnergyNvml()
    uuids = [SimpleNamespace(uuid=f"{index}a0b1c2d-0000") for index in range(3)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: uuids[device.index])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7)
    monkeypatch.setattr(build, "HardwareMonitor", partial(HardwareMonitor, library=nvml))
    return nvml


def energy(nvml: EnergyNvml, path: Path, device: str, ranks: int) -> float | None:
    """Joules of a run on `ranks` GPUs while GPU 0 uses 100 J, GPU 1 200 J and GPU 2 300 J."""
    job: Any = SimpleNamespace(run_context=RunContext(EventDispatcher()))
    trainer: Any = SimpleNamespace(
        device=torch.device(device),
        config=Config(hardware_interval_s=0.1, nproc_per_node=ranks),
        run_dir=SimpleNamespace(path=path),
        reports=SimpleNamespace(energy=lambda: None),
    )
    samples: list[protocol.AnyEvent] = []
    job.run_context.dispatcher.add_listener(lambda event: samples.append(event) or ())  # type: ignore[func-returns-value]
    with build._monitoring(job, trainer):
        wait_until(lambda: bool(samples))
        nvml.energy_mj += 100_000
        joules: float | None = trainer.reports.energy()
    return joules


def test_energy_is_the_sum_over_the_gpus_of_all_ranks(three_gpus: EnergyNvml, tmp_path: Path) -> None:
    assert [energy(three_gpus, tmp_path, "cuda:0", ranks) for ranks in (1, 2, 3)] == [100.0, 300.0, 600.0]
    assert energy(three_gpus, tmp_path, "cuda:1", 2) == 500.0


def test_a_cpu_run_has_no_energy(three_gpus: EnergyNvml, tmp_path: Path) -> None:
    assert energy(three_gpus, tmp_path, "cpu", 2) is None
