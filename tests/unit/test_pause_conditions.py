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

from tests.core.trainer_process import ROOT
from tests.recording_sink import RecordingSink
from tests.unit.fake_nvml import FakeNvml
from tests.waiting import wait_until
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
    """Return the times at which a run is paused, every 2 s. Spans: (seconds, GiB used by other programs)."""
    monitor = ExternalGpuMonitor(lambda name: None)
    paused = []
    for number, gib in enumerate(gib for seconds, gib in spans for _ in range(seconds // 2)):
        monitor.update(2.0 * number, gib * GIB)
        if monitor.pause_state() is not None:
            paused.append(2.0 * number)
    return paused


def test_a_pause_starts_after_6_seconds_of_use_and_ends_a_minute_after_the_use() -> None:
    paused = paused_times((20, 1), (40, 5), (100, 1))
    assert paused == [float(second) for second in range(26, 120, 2)]


def test_memory_in_use_since_the_start_does_not_pause() -> None:
    assert paused_times((100, 6)) == []


def test_short_use_does_not_pause() -> None:
    assert paused_times((20, 1), (4, 9), (20, 1), (4, 9), (20, 1)) == []


def test_a_short_gap_does_not_resume() -> None:
    paused = paused_times((10, 1), (20, 5), (50, 1), (20, 5), (10, 1))
    assert paused == [float(second) for second in range(16, 110, 2)]


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


def test_memory_of_another_process_is_counted_once(other_pid: int) -> None:
    query = FakeQuery(
        GetComputeRunningProcesses_v3=[process(os.getpid(), 20), process(other_pid, 3)],
        GetGraphicsRunningProcesses_v3=[process(other_pid, 3)],
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    usage = query_external_memory(query, 20 * GIB)
    assert usage is not None
    memory, program = usage
    assert memory == 3 * GIB
    assert program


def test_child_processes_are_not_other_programs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        query = FakeQuery(GetComputeRunningProcesses_v3=[process(os.getpid(), 1), process(child.pid, 9)])
        assert query_external_memory(query, 0) == (0, "")
    finally:
        child.communicate()


@pytest.mark.parametrize("own_process_listed", [True, False], ids=["Windows", "a container"])
def test_without_memory_per_process_the_total_of_the_gpu_is_used(own_process_listed: bool, other_pid: int) -> None:
    processes = [process(other_pid, None)] + ([process(os.getpid(), None)] if own_process_listed else [])
    query = FakeQuery(
        GetComputeRunningProcesses_v3=processes,
        GetMemoryInfo=SimpleNamespace(used=24 * GIB),
    )
    assert query_external_memory(query, 20 * GIB) == (4 * GIB, "")


def test_the_compiler_of_the_run_is_no_other_program() -> None:
    query = FakeQuery(GetMemoryInfo=SimpleNamespace(used=24 * GIB))
    command = [sys.executable, "-P", "-m", "trainer_core.train.engine.compilation"]  # it reads stdin
    compiler = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        assert query_external_memory(query, 20 * GIB) is None
    finally:
        compiler.kill()
        compiler.communicate()
    assert query_external_memory(query, 20 * GIB) == (4 * GIB, "")


def test_a_driver_without_memory_values_does_not_pause() -> None:
    assert query_external_memory(FakeQuery(), 0) is None


def test_the_monitor_queries_the_gpu_that_torch_uses(tmp_path: Path) -> None:
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
    wait_until(lambda: bool(calls))
    monitor.stop()
    query, reserved = calls[0]
    assert reserved == 2
    assert query("nvmlDeviceGetUtilizationRates").gpu == 87
    assert query("nvmlDeviceGetComputeRunningProcesses_v3") is None


def test_a_run_pauses_and_warns_about_the_program(other_pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, now = RecordingSink(), [0.0]
    context = RunContext(EventDispatcher(sink))
    monkeypatch.setattr("trainer_core.system.pause_conditions.time.monotonic", lambda: now[0])
    update = monitor_external_usage(context)
    for second, gib in ((0.0, 0), (2.0, 4), (8.0, 4)):
        now[0] = second
        update(FakeQuery(GetComputeRunningProcesses_v3=[process(os.getpid(), 9), process(other_pid, gib)]), 0)
    monkeypatch.undo()
    assert [warning.code for warning in sink.events_of(protocol.Warn)] == ["pause.other_program"]
    (condition,) = context.pause_conditions
    state = condition()
    assert state is not None
    assert state.reason == "other_program"
