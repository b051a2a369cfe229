"""Where the time of a step goes, measured without making the GPU wait.

On a CPU a section is a pair of clock readings. On a GPU the work of a section is queued, so a pair of
CUDA events is recorded instead and read when the loop reads the loss anyway. Waiting for data happens
on the host and is always read from the clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final, Literal

import torch

from trainer_core.protocol import StepTime

Section = Literal["data", "transfer", "forward", "backward", "optimizer"]
SECTIONS: Final[tuple[Section, ...]] = ("data", "transfer", "forward", "backward", "optimizer")


class StepClock:
    """Adds up sections over the steps since the last reading."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: dict[Section, float] = dict.fromkeys(SECTIONS, 0.0)
        self._pending: list[tuple[Section, torch.cuda.Event, torch.cuda.Event]] = []
        self._spare: list[torch.cuda.Event] = []
        self._wall = 0.0
        self._steps = 0
        self.seconds = 0.0  # of all steps, also those that were read already

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around one whole step."""
        since = time.perf_counter()
        yield
        self._add(time.perf_counter() - since)
        self._steps += 1

    @contextlib.contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """Around one part of a step."""
        if self._on_gpu and name != "data":
            start, end = self._event(), self._event()
            start.record()
            yield
            end.record()
            self._pending.append((name, start, end))
        else:
            since = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - since

    def _event(self) -> torch.cuda.Event:
        return self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def read(self) -> tuple[StepTime, float]:
        """Mean milliseconds of a step by section, and the seconds of all steps since the last reading.

        The sections add up to the step: `other` is the rest of its wall time.
        """
        self.catch_up()  # `elapsed_time` may be asked only of events that the GPU has passed
        for name, start, end in self._pending:
            self._seconds[name] += start.elapsed_time(end) / 1000
            self._spare += (start, end)
        self._pending.clear()
        wall, steps = self._wall, max(1, self._steps)
        millis = {name: 1000 * seconds / steps for name, seconds in self._seconds.items()}
        other = max(0.0, 1000 * wall / steps - sum(millis.values()))
        self._seconds = dict.fromkeys(SECTIONS, 0.0)
        self._wall, self._steps = 0.0, 0
        return StepTime(**millis, other=other), wall

    def catch_up(self) -> None:
        """Wait for the GPU: what it still has to do belongs to the steps. Before anything that is no step."""
        if self._on_gpu:
            since = time.perf_counter()
            torch.cuda.synchronize()
            self._add(time.perf_counter() - since)

    def _add(self, seconds: float) -> None:
        self._wall += seconds
        self.seconds += seconds
