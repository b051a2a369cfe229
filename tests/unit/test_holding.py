"""Another program on the GPU is a reason to wait, when it takes much and stays; told by sequences of looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kept import Kept
from tests.unit.fake_nvml import FakeNvml
from tests.unit.test_hardware import wait_for
from trainer_core import protocol
from trainer_core.run_context import RunContext
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.system.pause_conditions import (
    ExternalGpuMonitor,
    ExternalGpuUsage,
    monitor_external_usage,
    query_external_usage,
)
from trainer_core.wire import EventDispatcher

GIB = 2**30


def held_at(looks: list[ExternalGpuUsage]) -> list[float]:
    """The moments at which work is held."""
    others = ExternalGpuMonitor(lambda name: None)
    held = []
    for look in looks:
        others.update(look)
        if others.pause_state() is not None:
            held.append(look.timestamp_s)
    return held


def every_2_s(*spans: tuple[float, int | None, float | None]) -> list[ExternalGpuUsage]:
    """Looks, from spans of (seconds, GiB of memory, share of use)."""
    looks: list[ExternalGpuUsage] = []
    for seconds, gib, use in spans:
        at = looks[-1].timestamp_s + 2 if looks else 0.0
        looks += [
            ExternalGpuUsage(at + 2 * n, None if gib is None else gib * GIB, use) for n in range(int(seconds) // 2)
        ]
    return looks


def test_a_program_that_takes_memory_holds_work_after_some_seconds_and_for_a_minute_more() -> None:
    held = held_at(every_2_s((20, 1, None), (40, 5, None), (100, 1, None)))
    assert held[0] == 26
    assert held[-1] == 60 + 58
    assert held == [float(at) for at in range(26, 120, 2)]


def test_a_program_that_only_computes_holds_work_too() -> None:
    assert held_at(every_2_s((20, None, 0.0), (40, None, 0.9)))[0] == 26
    assert held_at(every_2_s((20, 1, 0.1), (40, 1, 0.1))) == []


def test_what_was_there_from_the_beginning_is_no_reason() -> None:
    assert held_at(every_2_s((100, 6, None))) == []


def test_a_short_visit_is_no_reason() -> None:
    assert held_at(every_2_s((20, 1, None), (4, 9, 0.9), (20, 1, None), (4, 9, 0.9), (20, 1, None))) == []


def test_a_program_that_comes_back_within_a_minute_was_never_gone() -> None:
    held = held_at(every_2_s((10, 1, None), (20, 5, None), (50, 1, None), (20, 5, None), (10, 1, None)))
    assert held == [float(at) for at in range(16, 110, 2)]


def test_a_driver_that_tells_nothing_holds_nothing() -> None:
    assert held_at(every_2_s((100, None, None))) == []


# --- what NVML says --------------------------------------------------------------------------------


class Card:
    """Answers as NVML does about one card; what is missing fails there."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def __call__(self, function: str, *arguments: object) -> Any:
        return self.answers.get(function.removeprefix("nvmlDevice"))


def process(pid: int, gib: float | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * GIB))


def use(pid: int, percent: int, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=int(seconds * 1e6))


@pytest.fixture
def stranger() -> int:
    """A process that is not ours, as far as descent goes."""
    return os.getppid()


def test_linux_tells_each_processs_memory_and_use(stranger: int) -> None:
    card = Card(
        GetComputeRunningProcesses_v3=[process(os.getpid(), 20), process(stranger, 3)],
        GetGraphicsRunningProcesses_v3=[process(stranger, 3)],
        GetProcessUtilization=[use(stranger, 10, 99.0), use(stranger, 40, 100.0), use(os.getpid(), 60, 100.0)],
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    look = query_external_usage(card, 20 * GIB, paused=False, timestamp_s=7.0)
    assert (look.timestamp_s, look.memory, look.utilization) == (7.0, 3 * GIB, 0.4)
    assert look.name


def test_the_use_of_a_program_that_has_ended_is_forgotten(stranger: int) -> None:
    processes = [process(os.getpid(), 20)]
    samples = [use(stranger, 90, 10.0), use(os.getpid(), 60, 100.0)]
    card = Card(GetComputeRunningProcesses_v3=processes, GetProcessUtilization=samples)
    assert query_external_usage(card, 0, paused=False, timestamp_s=0.0)[1:] == (0, 0.0, "")


def test_processes_that_this_one_has_started_are_its_own() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        card = Card(GetComputeRunningProcesses_v3=[process(os.getpid(), 1), process(child.pid, 9)])
        assert query_external_usage(card, 0, paused=False, timestamp_s=0.0).memory == 0
    finally:
        child.communicate()


@pytest.mark.parametrize("own_memory", [None, "unlisted"], ids=["Windows", "a container"])
def test_without_figures_of_processes_the_card_as_a_whole_tells(own_memory: str | None, stranger: int) -> None:
    processes = [process(stranger, None)] + ([process(os.getpid(), None)] if own_memory is None else [])
    card = Card(
        GetComputeRunningProcesses_v3=processes,
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
        GetUtilizationRates=SimpleNamespace(gpu=80),
    )
    assert query_external_usage(card, 20 * GIB, paused=False, timestamp_s=0.0)[1:] == (4 * GIB, None, "")
    assert query_external_usage(card, 0, paused=True, timestamp_s=0.0)[1:] == (24 * GIB, 0.8, "")


def test_a_sampler_asks_the_card_that_torch_uses(tmp_path: Path) -> None:
    asked: list[tuple[Callable[..., Any], int]] = []
    sampler = HardwareMonitor(
        lambda event: None,
        0.05,
        tmp_path,
        torch_memory=lambda: ("0a0b1c2d-0000", 1, 2),
        library=FakeNvml(),
        gpu_callback=lambda ask, reserved: asked.append((ask, reserved)),
    )
    sampler.start()
    wait_for(lambda: bool(asked))
    sampler.stop()
    ask, reserved = asked[0]
    assert reserved == 2
    assert ask("nvmlDeviceGetUtilizationRates").gpu == 87
    assert ask("nvmlDeviceGetComputeRunningProcesses_v3") is None


def test_a_session_waits_for_it_and_says_for_what(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, now = Kept(), [0.0]
    session = RunContext(EventDispatcher(kept))
    monkeypatch.setattr("trainer_core.system.pause_conditions.time.monotonic", lambda: now[0])
    look = monitor_external_usage(session)
    for at, gib in ((0.0, 0), (2.0, 4), (8.0, 4)):
        now[0] = at
        look(Card(GetComputeRunningProcesses_v3=[process(os.getpid(), 9), process(stranger, gib)]), 0)
    monkeypatch.undo()
    assert [warning.code for warning in kept.of(protocol.Warn)] == ["pause.other_program"]
    (hold,) = session.pause_conditions
    why = hold()
    assert why is not None
    assert why.reason == "other_program"
