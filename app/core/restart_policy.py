"""Countdown to an automatic restart after a transient failure, which the user can cancel.

The rules are in `trainer_core.restart_policy`. The owner passes the trainer's events and exit, and polls `is_due` from
a timer; `now` is monotonic time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.restart_policy import GiveUp, ProcessExit, Restart, RestartPolicy


@dataclass(frozen=True, slots=True)
class PendingRestart:
    """A restart with its countdown."""

    attempt: int  # from 1, since the last progress
    max_attempts: int
    reason: str  # message code
    step: int  # of the checkpoint to resume from; 0: from the beginning
    due_at: float

    def remaining_s(self, now: float) -> float:
        """Seconds until the restart, at least 0."""
        return max(0.0, self.due_at - now)


class AutoRestart:
    """Restarts of one run, between two starts by the user."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start by the user: cancel a pending restart and reset the count."""
        self.pending: PendingRestart | None = None
        self.gave_up: GiveUp | None = None
        self._policy: RestartPolicy | None = None
        self._received_hello = False  # from the current process
        self._step = 0

    def on_restarted(self) -> None:
        """The pending restart was carried out."""
        self.pending, self._received_hello = None, False

    def add(self, event: AnyEvent) -> None:
        """Process an event of the trainer."""
        match event:
            case protocol.Hello():
                self._received_hello = True
                self._step = event.resumed_from_step or 0
                limit = event.config.get("restarts")
                if self._policy is None:
                    self._policy = RestartPolicy(limit if isinstance(limit, int) else 0, self._step)
            case protocol.Checkpoint():
                self._step = max(self._step, event.step)
            case _:
                pass

    def on_exited(self, exit_code: int, now: float, *, crashed: bool = False, error: str = "") -> None:
        """The trainer exited unexpectedly: sets `pending` or `gave_up`, if applicable.

        `error`: code of its error event.
        """
        if self._policy is None:
            return
        ending = ProcessExit(exit_code, crashed=crashed, error=error, started=self._received_hello, step=self._step)
        match self._policy.decide(ending):
            case Restart(attempt, of, wait_s, reason):
                self.pending = PendingRestart(attempt, of, reason, self._step, now + wait_s)
            case GiveUp() as given_up:
                self.gave_up = given_up
            case None:
                pass

    def cancel(self) -> None:
        """Cancel the restart."""
        self.pending = None

    def skip_countdown(self, now: float) -> None:
        """Restart now."""
        if self.pending is not None:
            waiting = self.pending
            self.pending = PendingRestart(waiting.attempt, waiting.max_attempts, waiting.reason, waiting.step, now)

    def is_due(self, now: float) -> bool:
        return self.pending is not None and now >= self.pending.due_at
