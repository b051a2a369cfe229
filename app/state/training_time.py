"""For how long a run was trained, whatever lies between its processes."""

from __future__ import annotations

from trainer_core import protocol
from trainer_core.protocol import AnyEvent


class TrainingTime:
    """Give it a run's events in order; figures (`opening.FIGURES`) may be left out.

    `seconds`: over all processes, from each one's first word on; without pauses, and without what is done again
    after a checkpoint.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._saved: dict[int, float] = {}  # by the step of a checkpoint: the seconds when it was there
        self._last: float | None = None  # the time of the event before; None: time does not count now

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self.seconds, self._last = self.until(event.resumed_from_step), event.t
            return
        if self._last is not None:
            self.seconds += max(0.0, event.t - self._last)
            self._last = max(self._last, event.t)
        if isinstance(event, protocol.Phase):
            self._last = None if event.phase == "paused" else event.t
        elif isinstance(event, protocol.Checkpoint):
            self._saved[event.step] = self.seconds

    def until(self, step: int | None) -> float:
        """The seconds that went into the checkpoint of a step; None: of a new run."""
        if step is None:
            return 0.0
        return max((seconds for saved, seconds in self._saved.items() if saved <= step), default=0.0)
