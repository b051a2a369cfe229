"""Step timing and asynchronous metrics, on a CPU and on a GPU."""

from __future__ import annotations

import time

import pytest
import torch

from trainer_core.train import step_timer
from trainer_core.train.async_metrics import AsyncMetrics
from trainer_core.train.step_timer import SECTIONS, StepClock

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class ManualTime:
    """Stands for the module `time`; advances on request."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def manual_time(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    clock = ManualTime()
    monkeypatch.setattr(step_timer, "time", clock)
    return clock


def time_one_step(clock: StepClock, manual_time: ManualTime) -> None:
    """Sections of 1, 2, 3, 4, 5, 6, 7 and 8 s."""
    with clock.step():
        for seconds, name in enumerate(SECTIONS[:-1], start=1):
            manual_time.advance(seconds)
            clock.mark(name)
        manual_time.advance(8)


def test_sections_sum_to_the_wall_time(manual_time: ManualTime) -> None:
    clock = StepClock(CPU)
    for _ in range(5):
        time_one_step(clock, manual_time)
    with clock.step():
        interval = clock.take_interval()
    assert list(interval.seconds.values()) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert interval.wall == clock.seconds == manual_time.now
    assert interval.per_step().forward == pytest.approx(1000 * 20 / 6)


def test_time_between_steps_is_excluded_and_saving_is_separate(manual_time: ManualTime) -> None:
    clock = StepClock(CPU)
    time_one_step(clock, manual_time)
    manual_time.advance(100)
    with clock.saving():
        manual_time.advance(8)
    manual_time.advance(100)
    with clock.step():
        interval = clock.take_interval()
    assert interval.wall == clock.seconds == 36
    assert interval.steps == 2
    step_time = interval.per_step()
    assert step_time.checkpoint == 4000
    sections = (
        step_time.data,
        step_time.transfer,
        step_time.generation,
        step_time.forward,
        step_time.backward,
        step_time.sync,
        step_time.optimizer,
        step_time.other,
    )
    assert sum(sections) == 36_000 / 2


def test_an_interval_includes_the_current_step(manual_time: ManualTime) -> None:
    clock = StepClock(CPU)
    time_one_step(clock, manual_time)
    with clock.step():
        manual_time.advance(2)
        clock.mark("forward")
        first = clock.take_interval()
        manual_time.advance(1)
    with clock.step():
        second = clock.take_interval()
    assert (first.steps, first.seconds["forward"]) == (2, 6)
    assert (second.steps, second.seconds["other"], second.wall) == (1, 1, 1)


# --- simulated CUDA stream ---------------------------------------------------------------


class SimulatedStream:
    """A CUDA stream that completes its events on request."""

    def __init__(self) -> None:
        self.recorded: list[SimulatedEvent] = []
        self.completed = 0
        self.waits = 0

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    def complete(self, count: int | None = None) -> None:
        """Complete the first `count` events, or all."""
        self.completed = len(self.recorded) if count is None else count


class SimulatedEvent:
    """Stands for torch.cuda.Event. Its completion time in ms is its position in the stream."""

    count = 0

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        SimulatedEvent.count += 1

    def record(self) -> None:
        self.position = len(self.stream.recorded)
        self.stream.recorded.append(self)

    def query(self) -> bool:
        return self.position < self.stream.completed

    def synchronize(self) -> None:
        if not self.query():
            self.stream.waits += 1
            self.stream.complete(self.position + 1)

    def elapsed_time(self, end: SimulatedEvent) -> float:
        assert self.query()
        assert end.query()
        return float(end.position - self.position)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> SimulatedStream:
    stream = SimulatedStream()
    monkeypatch.setattr(step_timer, "_new_event", stream.event)
    return stream


def queue_step(clock: StepClock) -> None:
    with clock.step():
        clock.mark("forward")
        clock.mark("backward")


def test_events_are_read_only_after_the_gpu_has_completed_them(stream: SimulatedStream) -> None:
    clock = StepClock(torch.device("cuda"))
    for _ in range(3):
        queue_step(clock)
    assert (clock.seconds, stream.waits) == (0.0, 0)
    stream.complete(4 + 2)  # the first step, and half of the second
    queue_step(clock)
    assert clock.seconds == pytest.approx(0.003)
    clock.catch_up()
    assert clock.seconds == pytest.approx(4 * 0.003)
    assert clock.take_interval().steps == 5  # including the current step


def test_a_completed_interval_is_read_without_waiting(stream: SimulatedStream) -> None:
    clock = StepClock(torch.device("cuda"))
    queue_step(clock)
    with clock.step():
        clock.mark("forward")
        interval = clock.take_interval()
        completed = len(stream.recorded)
    queue_step(clock)
    stream.complete(completed)
    clock.read(interval)
    assert stream.waits == 0
    assert interval.seconds["forward"] == pytest.approx(0.002)
    assert interval.seconds["backward"] == pytest.approx(0.001)
    assert interval.wall == pytest.approx(0.005)
    clock.catch_up()
    assert clock.seconds == pytest.approx(0.005 + 0.001 + 0.003)


def test_the_number_of_events_is_bounded(stream: SimulatedStream) -> None:
    SimulatedEvent.count = 0
    clock = StepClock(torch.device("cuda"))
    for _ in range(500):
        queue_step(clock)
    assert SimulatedEvent.count <= 4 * (step_timer._STEPS_AHEAD + 2)
    assert stream.waits == 500 - step_timer._STEPS_AHEAD  # the clock lets this many steps queue


@needs_gpu
def test_sections_on_a_gpu_sum_to_the_wall_time() -> None:
    device = torch.device("cuda")
    clock, matrix = StepClock(device), torch.randn(2048, 2048, device=device)
    clock.catch_up()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        with clock.step():
            clock.mark("data")
            for name in ("forward", "backward", "optimizer"):
                matrix = (matrix @ matrix).tanh()
                clock.mark(name)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    clock.catch_up()
    interval = clock.take_interval()
    assert interval.wall == pytest.approx(wall, rel=0.02)
    assert interval.seconds["other"] < 0.1 * interval.wall


# --- asynchronous metrics ------------------------------------------------------------------------


def test_metrics_on_a_cpu_are_available_immediately() -> None:
    metrics: AsyncMetrics[str] = AsyncMetrics(CPU)
    total = torch.zeros(())
    metrics.record("first", [total, torch.tensor([7.0, 8.0])])
    total += 1
    metrics.record("second", [total])
    total.zero_()
    assert list(metrics.completed()) == [("first", [0.0, 7.0, 8.0]), ("second", [1.0])]
    assert list(metrics.completed(wait=True)) == []


@needs_gpu
def test_metrics_on_a_gpu_arrive_in_order() -> None:
    metrics: AsyncMetrics[int] = AsyncMetrics(torch.device("cuda"))
    total = torch.zeros((), device="cuda")
    for number in range(20):
        total += 1
        metrics.record(number, [total])
    assert list(metrics.completed(wait=True)) == [(number, [number + 1.0]) for number in range(20)]
