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
    ExternalGpuUsage,
    monitor_external_usage,
    query_external_usage,
)
from trainer_core.wire import EventDispatcher

GIB = 2**30


def paused_times(samples: list[ExternalGpuUsage]) -> list[float]:
    """Times of the samples at which the run is paused."""
    monitor = ExternalGpuMonitor(lambda name: None)
    paused = []
    for usage in samples:
        monitor.update(usage)
        if monitor.pause_state() is not None:
            paused.append(usage.timestamp_s)
    return paused


def sample_every_2_s(*spans: tuple[float, int | None, float | None]) -> list[ExternalGpuUsage]:
    """Samples, from spans of (seconds, GiB of memory, utilization)."""
    samples: list[ExternalGpuUsage] = []
    for seconds, gib, use in spans:
        at = samples[-1].timestamp_s + 2 if samples else 0.0
        samples += [
            ExternalGpuUsage(at + 2 * n, None if gib is None else gib * GIB, use) for n in range(int(seconds) // 2)
        ]
    return samples


def test_memory_use_pauses_after_some_seconds_and_for_another_minute() -> None:
    paused = paused_times(sample_every_2_s((20, 1, None), (40, 5, None), (100, 1, None)))
    assert paused[0] == 26
    assert paused[-1] == 60 + 58
    assert paused == [float(at) for at in range(26, 120, 2)]


def test_utilization_alone_pauses() -> None:
    assert paused_times(sample_every_2_s((20, None, 0.0), (40, None, 0.9)))[0] == 26
    assert paused_times(sample_every_2_s((20, 1, 0.1), (40, 1, 0.1))) == []


def test_memory_held_since_the_start_does_not_pause() -> None:
    assert paused_times(sample_every_2_s((100, 6, None))) == []


def test_short_use_does_not_pause() -> None:
    assert paused_times(sample_every_2_s((20, 1, None), (4, 9, 0.9), (20, 1, None), (4, 9, 0.9), (20, 1, None))) == []


def test_a_short_gap_does_not_resume() -> None:
    paused = paused_times(sample_every_2_s((10, 1, None), (20, 5, None), (50, 1, None), (20, 5, None), (10, 1, None)))
    assert paused == [float(at) for at in range(16, 110, 2)]


def test_a_driver_without_values_does_not_pause() -> None:
    assert paused_times(sample_every_2_s((100, None, None))) == []


# --- NVML queries ----------------------------------------------------------------------------------


class FakeQuery:
    """Fake NVML query of one GPU; missing functions fail."""

    def __init__(self, **results: object) -> None:
        self.results = results

    def __call__(self, function: str, *arguments: object) -> Any:
        return self.results.get(function.removeprefix("nvmlDevice"))


def process(pid: int, gib: float | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * GIB))


def utilization(pid: int, percent: int, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=int(seconds * 1e6))


@pytest.fixture
def other_pid() -> int:
    """A process that is not a descendant."""
    return os.getppid()


def test_memory_and_utilization_per_process(other_pid: int) -> None:
    query = FakeQuery(
        GetComputeRunningProcesses_v3=[process(os.getpid(), 20), process(other_pid, 3)],
        GetGraphicsRunningProcesses_v3=[process(other_pid, 3)],
        GetProcessUtilization=[
            utilization(other_pid, 10, 99.0),
            utilization(other_pid, 40, 100.0),
            utilization(os.getpid(), 60, 100.0),
        ],
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    usage = query_external_usage(query, 20 * GIB, paused=False, timestamp_s=7.0)
    assert (usage.timestamp_s, usage.memory, usage.utilization) == (7.0, 3 * GIB, 0.4)
    assert usage.name


def test_old_utilization_samples_are_ignored(other_pid: int) -> None:
    processes = [process(os.getpid(), 20)]
    samples = [utilization(other_pid, 90, 10.0), utilization(os.getpid(), 60, 100.0)]
    query = FakeQuery(GetComputeRunningProcesses_v3=processes, GetProcessUtilization=samples)
    assert query_external_usage(query, 0, paused=False, timestamp_s=0.0)[1:] == (0, 0.0, "")


def test_child_processes_are_not_other_programs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        query = FakeQuery(GetComputeRunningProcesses_v3=[process(os.getpid(), 1), process(child.pid, 9)])
        assert query_external_usage(query, 0, paused=False, timestamp_s=0.0).memory == 0
    finally:
        child.communicate()


@pytest.mark.parametrize("own_memory", [None, "unlisted"], ids=["Windows", "a container"])
def test_without_values_per_process_those_of_the_gpu_are_used(own_memory: str | None, other_pid: int) -> None:
    processes = [process(other_pid, None)] + ([process(os.getpid(), None)] if own_memory is None else [])
    query = FakeQuery(
        GetComputeRunningProcesses_v3=processes,
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
        GetUtilizationRates=SimpleNamespace(gpu=80),
    )
    assert query_external_usage(query, 20 * GIB, paused=False, timestamp_s=0.0)[1:] == (4 * GIB, None, "")
    assert query_external_usage(query, 0, paused=True, timestamp_s=0.0)[1:] == (24 * GIB, 0.8, "")


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
    assert [warning.code for warning in kept.of(protocol.Warn)] == ["pause.other_program"]
    (condition,) = session.pause_conditions
    state = condition()
    assert state is not None
    assert state.reason == "other_program"
