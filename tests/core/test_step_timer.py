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


class Hands:
    """A clock that is moved by hand, in place of the host's."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(step_timer, "time", made)
    return made


def a_step(clock: StepClock, hands: Hands) -> None:
    """Sections of 1, 2, 3, 4, 5, 6 and 7 s."""
    with clock.step():
        for seconds, name in enumerate(SECTIONS[:-1], start=1):
            hands.move(seconds)
            clock.mark(name)
        hands.move(7)


def test_sections_add_up_to_the_wall_time(hands: Hands) -> None:
    clock = StepClock(CPU)
    for _ in range(5):
        a_step(clock, hands)
    with clock.step():
        interval = clock.take_interval()
    assert list(interval.seconds.values()) == [5, 10, 15, 20, 25, 30, 35]
    assert interval.wall == clock.seconds == hands.now
    assert interval.per_step().forward == pytest.approx(1000 * 15 / 6)


def test_time_between_steps_is_excluded_and_saving_is_separate(hands: Hands) -> None:
    clock = StepClock(CPU)
    a_step(clock, hands)
    hands.move(100)
    with clock.saving():
        hands.move(8)
    hands.move(100)
    with clock.step():
        interval = clock.take_interval()
    assert interval.wall == clock.seconds == 28
    assert interval.steps == 2
    told = interval.per_step()
    assert told.checkpoint == 4000
    sections = told.data, told.transfer, told.forward, told.backward, told.sync, told.optimizer, told.other
    assert sum(sections) == 28_000 / 2


def test_an_interval_includes_the_current_step(hands: Hands) -> None:
    clock = StepClock(CPU)
    a_step(clock, hands)
    with clock.step():
        hands.move(2)
        clock.mark("forward")
        first = clock.take_interval()
        hands.move(1)
    with clock.step():
        second = clock.take_interval()
    assert (first.steps, first.seconds["forward"]) == (2, 5)
    assert (second.steps, second.seconds["other"], second.wall) == (1, 1, 1)


# --- a stream that is played by hand ---------------------------------------------------------------


class Stream:
    """Passes its events when it is told to."""

    def __init__(self) -> None:
        self.recorded: list[Played] = []
        self.passed = 0
        self.waited = 0

    def event(self) -> Played:
        return Played(self)

    def run(self, upto: int | None = None) -> None:
        self.passed = len(self.recorded) if upto is None else upto


class Played:
    """Stands in for torch.cuda.Event: the time at which it is passed is its place in the stream, in ms."""

    made = 0

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        Played.made += 1

    def record(self) -> None:
        self.place = len(self.stream.recorded)
        self.stream.recorded.append(self)

    def query(self) -> bool:
        return self.place < self.stream.passed

    def synchronize(self) -> None:
        if not self.query():
            self.stream.waited += 1
            self.stream.run(self.place + 1)

    def elapsed_time(self, end: Played) -> float:
        assert self.query()
        assert end.query()
        return float(end.place - self.place)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(step_timer, "_new_event", made.event)
    return made


def queue_step(clock: StepClock) -> None:
    with clock.step():
        clock.mark("forward")
        clock.mark("backward")


def test_events_are_read_only_after_the_gpu_has_passed_them(stream: Stream) -> None:
    clock = StepClock(torch.device("cuda"))
    for _ in range(3):
        queue_step(clock)
    assert (clock.seconds, stream.waited) == (0.0, 0)
    stream.run(4 + 2)  # the first step, and half of the second
    queue_step(clock)
    assert clock.seconds == pytest.approx(0.003)
    clock.catch_up()
    assert clock.seconds == pytest.approx(4 * 0.003)
    assert clock.take_interval().steps == 5  # the one under way included


def test_a_passed_interval_is_read_without_waiting(stream: Stream) -> None:
    clock = StepClock(torch.device("cuda"))
    queue_step(clock)
    with clock.step():
        clock.mark("forward")
        interval = clock.take_interval()
        passed = len(stream.recorded)
    queue_step(clock)
    stream.run(passed)
    clock.read(interval)
    assert stream.waited == 0
    assert interval.seconds["forward"] == pytest.approx(0.002)
    assert interval.seconds["backward"] == pytest.approx(0.001)
    assert interval.wall == pytest.approx(0.005)
    clock.catch_up()
    assert clock.seconds == pytest.approx(0.005 + 0.001 + 0.003)


def test_the_number_of_events_is_bounded(stream: Stream) -> None:
    Played.made = 0
    clock = StepClock(torch.device("cuda"))
    for _ in range(500):
        queue_step(clock)
    assert Played.made <= 4 * (step_timer._STEPS_AHEAD + 2)
    assert stream.waited == 500 - step_timer._STEPS_AHEAD  # with so many steps queued, which the GPU does not notice


@needs_gpu
def test_sections_on_a_gpu_add_up_to_the_wall_time() -> None:
    device = torch.device("cuda")
    clock, matrix = StepClock(device), torch.randn(2048, 2048, device=device)
    clock.catch_up()
    torch.cuda.synchronize()
    since = time.perf_counter()
    for _ in range(50):
        with clock.step():
            clock.mark("data")
            for name in ("forward", "backward", "optimizer"):
                matrix = (matrix @ matrix).tanh()
                clock.mark(name)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    wall = time.perf_counter() - since
    clock.catch_up()
    interval = clock.take_interval()
    assert interval.wall == pytest.approx(wall, rel=0.02)
    assert interval.seconds["other"] < 0.1 * interval.wall


# --- values that are read late ------------------------------------------------------------------------


def test_metrics_on_a_cpu_are_available_immediately() -> None:
    late: AsyncMetrics[str] = AsyncMetrics(CPU)
    total = torch.zeros(())
    late.record("first", [total, torch.tensor([7.0, 8.0])])
    total += 1
    late.record("second", [total])
    total.zero_()
    assert list(late.completed()) == [("first", [0.0, 7.0, 8.0]), ("second", [1.0])]
    assert list(late.completed(wait=True)) == []


@needs_gpu
def test_metrics_on_a_gpu_arrive_in_order() -> None:
    late: AsyncMetrics[int] = AsyncMetrics(torch.device("cuda"))
    total = torch.zeros((), device="cuda")
    for number in range(20):
        total += 1
        late.record(number, [total])
    assert list(late.completed(wait=True)) == [(number, [number + 1.0]) for number in range(20)]
