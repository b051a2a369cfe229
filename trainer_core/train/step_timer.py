"""Times the sections of a step without synchronizing with the GPU.

`mark` assigns the time since the last mark to a section, so sections add up to the total. On a CPU a mark reads the
host's clock. On a GPU it records a CUDA event: what counts is when the GPU reaches it, so `data` is the time in which
the GPU was idle for lack of a batch, and waiting for a batch while the GPU computes costs nothing. Events are read some
steps later and reused.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from trainer_core.protocol import StepTime

Section = Literal["data", "transfer", "generation", "forward", "backward", "sync", "optimizer", "other"]
SECTIONS: Final[tuple[Section, ...]] = (
    "data", "transfer", "generation", "forward", "backward", "sync", "optimizer", "other",
)  # fmt: skip

_STEPS_AHEAD: Final = 16
"""Steps that the host may be ahead of the GPU, so that the GPU is never idle."""


@dataclass(slots=True)
class Interval:
    """Seconds of some steps by section."""

    seconds: dict[Section, float] = field(default_factory=lambda: dict.fromkeys(SECTIONS, 0.0))
    steps: int = 0
    checkpoint: float = 0.0  # saving; not part of the steps

    @property
    def wall(self) -> float:
        """Seconds of all steps, without saving."""
        return sum(self.seconds.values())

    def add(self, other: Interval) -> None:
        for name, seconds in other.seconds.items():
            self.seconds[name] += seconds
        self.steps += other.steps
        self.checkpoint += other.checkpoint

    def per_step(self) -> StepTime:
        """Milliseconds per step. With `checkpoint` they add up to all time spent on steps and saving."""
        scale = 1000 / max(1, self.steps)
        parts = {name: scale * seconds for name, seconds in self.seconds.items()}
        return StepTime(**parts, checkpoint=scale * self.checkpoint)


class StepClock:
    """Runs during steps, not during evaluation, saving or waiting.

    With `enabled` off, sections are not distinguished (all is `other`), to measure the overhead of marks.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self._marks = _DeviceMarks() if device.type == "cuda" else _HostMarks()
        self._interval = Interval()
        self._counted = False  # the current step belongs to an interval that was cut
        self.enabled = enabled
        self.earlier_s = 0.0  # seconds of the run in earlier processes

    @property
    def seconds(self) -> float:
        """Of all completed steps of the run; of all steps after `catch_up`."""
        return self.earlier_s + self._marks.total

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context of one step. Time without a mark is `other`. A failing step is not counted; its time up to the last
        mark is.
        """
        self._marks.begin()
        self._counted = False
        yield
        self._marks.mark("other", self._interval)
        if not self._counted:
            self._interval.steps += 1
        self._marks.end()

    def mark(self, section: Section) -> None:
        """Assign the time since the last mark (or the beginning of the step) to `section`."""
        if self.enabled:
            self._marks.mark(section, self._interval)

    def take_interval(self) -> Interval:
        """The interval since the last cut, including the current step; `read` it before use. The rest of this step is
        `other` of the next interval.
        """
        self._marks.mark("other", self._interval)
        self._interval.steps += 1
        self._counted = True
        done, self._interval = self._interval, Interval()
        return done

    def read(self, interval: Interval) -> None:
        """Complete an interval. On a GPU only with steps that it has finished; does not synchronize."""
        self._marks.read(interval)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Context of a checkpoint write between steps."""
        self.catch_up()
        since = time.perf_counter()
        yield
        self._interval.checkpoint += time.perf_counter() - since

    def catch_up(self) -> None:
        """Wait for the GPU, whose pending work belongs to the steps. Call before anything that is not a step."""
        self._marks.catch_up()

    def clear(self) -> None:
        """Start a new interval: its steps are repeated."""
        self.catch_up()
        self._interval = Interval()


class _HostMarks:
    """Marks by the host's clock."""

    def __init__(self) -> None:
        self.total = 0.0  # seconds
        self._last = 0.0

    def begin(self) -> None:
        self._last = time.perf_counter()

    def mark(self, section: Section, interval: Interval) -> None:
        now = time.perf_counter()
        interval.seconds[section] += now - self._last
        self.total += now - self._last
        self._last = now

    def end(self) -> None:
        """End the step."""

    def read(self, interval: Interval) -> None:
        """Complete an interval."""

    def catch_up(self) -> None:
        """Wait for the marks so far."""


class _DeviceMarks(_HostMarks):
    """Marks in a GPU's stream. Passing one implies passing all before it, so only ends of steps are queried."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[Section | None, torch.cuda.Event, Interval | None]] = deque()  # not read yet
        self._ends: deque[torch.cuda.Event] = deque()  # those of `_waiting` that end a step
        self._before: torch.cuda.Event | None = None  # the newest that was read
        self._spare: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._record(None, None)

    def mark(self, section: Section, interval: Interval) -> None:
        self._record(section, interval)

    def _record(self, section: Section | None, interval: Interval | None) -> None:
        event = self._spare.pop() if self._spare else _new_event()
        event.record()
        self._waiting.append((section, event, interval))

    def end(self) -> None:
        self._ends.append(self._waiting[-1][1])
        if len(self._ends) > _STEPS_AHEAD:
            self._ends[0].synchronize()
        while self._ends and self._ends[0].query():  # type: ignore[no-untyped-call]
            steps = len(self._ends)
            while len(self._ends) == steps:
                self._read_one()

    def read(self, interval: Interval) -> None:
        while any(of is interval for _, _, of in self._waiting):
            self._read_one()

    def catch_up(self) -> None:
        if self._waiting:
            self._waiting[-1][1].synchronize()
        while self._waiting:
            self._read_one()

    def _read_one(self) -> None:
        """Read the oldest event. The GPU must have passed it, as `elapsed_time` requires."""
        section, event, interval = self._waiting.popleft()
        if section is not None and interval is not None and self._before is not None:
            seconds = self._before.elapsed_time(event) / 1000
            interval.seconds[section] += seconds
            self.total += seconds
        if self._ends and self._ends[0] is event:
            self._ends.popleft()
        if self._before is not None:
            self._spare.append(self._before)
        self._before = event


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
