"""Training time of a run over all its processes."""

from __future__ import annotations

from trainer_core import protocol
from trainer_core.protocol import AnyEvent


class TrainingTime:
    """Computes training time from a run's events, in order; measurements may be omitted.

    `seconds`: over all processes, from each one's first event on; without pauses, and without steps that are repeated
    after a resume.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._seconds_by_step: dict[int, float] = {}  # training time at each checkpoint, by step
        self._last_event_time: float | None = None  # None: time does not count now

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self.seconds, self._last_event_time = self.seconds_at_step(event.resumed_from_step), event.t
            return
        if self._last_event_time is not None:
            self.seconds += max(0.0, event.t - self._last_event_time)
            self._last_event_time = max(self._last_event_time, event.t)
        if isinstance(event, protocol.Phase):
            self._last_event_time = None if event.phase == "paused" else event.t
        elif isinstance(event, protocol.Checkpoint):
            self._seconds_by_step[event.step] = self.seconds

    def seconds_at_step(self, step: int | None) -> float:
        """Training time at the checkpoint of a step; None: of a new run."""
        if step is None:
            return 0.0
        return max((seconds for saved, seconds in self._seconds_by_step.items() if saved <= step), default=0.0)
