"""Pauses while other programs use the GPU, from sequences of samples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.recording_sink import RecordingSink
from tests.unit.fake_nvml import FakeNvml
from tests.unit.test_hardware import wait_for
from trainer_core import protocol
from trainer_core.run_context import RunContext
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.system.pause_conditions import (
    ExternalGpuMonitor,
    monitor_external_usage,
    query_external_memory,
)
from trainer_core.wire import EventDispatcher

GIB = 2**30


def paused_times(*spans: tuple[int, int]) -> list[float]:
    """Times of samples, one every 2 s, at which the run is paused. Spans: (seconds, GiB held by others)."""
    monitor = ExternalGpuMonitor(lambda name: None)
    paused = []
    for number, gib in enumerate(gib for seconds, gib in spans for _ in range(seconds // 2)):
        monitor.update(2.0 * number, gib * GIB)
        if monitor.pause_state() is not None:
            paused.append(2.0 * number)
    return paused


def test_memory_use_pauses_after_some_seconds_and_for_another_minute() -> None:
    paused = paused_times((20, 1), (40, 5), (100, 1))
    assert paused == [float(at) for at in range(26, 120, 2)]


def test_memory_held_since_the_start_does_not_pause() -> None:
    assert paused_times((100, 6)) == []


def test_short_use_does_not_pause() -> None:
    assert paused_times((20, 1), (4, 9), (20, 1), (4, 9), (20, 1)) == []


def test_a_short_gap_does_not_resume() -> None:
    paused = paused_times((10, 1), (20, 5), (50, 1), (20, 5), (10, 1))
    assert paused == [float(at) for at in range(16, 110, 2)]


# --- NVML queries ----------------------------------------------------------------------------------


class FakeQuery:
    """Fake NVML query of one GPU; missing functions fail."""

    def __init__(self, **results: object) -> None:
        self.results = results

    def __call__(self, function: str, *arguments: object) -> Any:
        return self.results.get(function.removeprefix("nvmlDevice"))


def process(pid: int, gib: float | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * GIB))


@pytest.fixture
def other_pid() -> int:
    """A process that is not a descendant."""
    return os.getppid()


def test_memory_per_process(other_pid: int) -> None:
    query = FakeQuery(
        GetComputeRunningProcesses_v3=[process(os.getpid(), 20), process(other_pid, 3)],
        GetGraphicsRunningProcesses_v3=[process(other_pid, 3)],
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    found = query_external_memory(query, 20 * GIB)
    assert found is not None
    assert found[0] == 3 * GIB
    assert found[1]


def test_child_processes_are_not_other_programs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        query = FakeQuery(GetComputeRunningProcesses_v3=[process(os.getpid(), 1), process(child.pid, 9)])
        assert query_external_memory(query, 0) == (0, "")
    finally:
        child.communicate()


@pytest.mark.parametrize("own_memory", [None, "unlisted"], ids=["Windows", "a container"])
def test_without_values_per_process_those_of_the_gpu_are_used(own_memory: str | None, other_pid: int) -> None:
    processes = [process(other_pid, None)] + ([process(os.getpid(), None)] if own_memory is None else [])
    query = FakeQuery(
        GetComputeRunningProcesses_v3=processes,
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    assert query_external_memory(query, 20 * GIB) == (4 * GIB, "")


def test_a_driver_without_values_does_not_pause() -> None:
    assert query_external_memory(FakeQuery(), 0) is None


def test_the_monitor_queries_the_gpu_of_torch(tmp_path: Path) -> None:
    calls: list[tuple[Callable[..., Any], int]] = []
    monitor = HardwareMonitor(
        lambda event: None,
        0.05,
        tmp_path,
        torch_memory=lambda: ("0a0b1c2d-0000", 1, 2),
        library=FakeNvml(),
        gpu_callback=lambda query, reserved: calls.append((query, reserved)),
    )
    monitor.start()
    wait_for(lambda: bool(calls))
    monitor.stop()
    query, reserved = calls[0]
    assert reserved == 2
    assert query("nvmlDeviceGetUtilizationRates").gpu == 87
    assert query("nvmlDeviceGetComputeRunningProcesses_v3") is None


def test_a_session_pauses_and_warns_about_the_program(other_pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, now = RecordingSink(), [0.0]
    session = RunContext(EventDispatcher(kept))
    monkeypatch.setattr("trainer_core.system.pause_conditions.time.monotonic", lambda: now[0])
    update = monitor_external_usage(session)
    for at, gib in ((0.0, 0), (2.0, 4), (8.0, 4)):
        now[0] = at
        update(FakeQuery(GetComputeRunningProcesses_v3=[process(os.getpid(), 9), process(other_pid, gib)]), 0)
    monkeypatch.undo()
    assert [warning.code for warning in kept.events_of(protocol.Warn)] == ["pause.other_program"]
    (condition,) = session.pause_conditions
    state = condition()
    assert state is not None
    assert state.reason == "other_program"
