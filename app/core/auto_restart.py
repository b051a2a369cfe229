"""Countdown to an automatic restart after a transient failure, which the user can cancel.

The rules are in `trainer_core.restart_policy`. The owner passes the trainer's events and exit, and polls `is_due` from
a timer; `now` is monotonic time in seconds.
"""

from __future__ import annotations

from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.restart_policy import GiveUp, ProcessExit, Restart, RestartPolicy


class AutoRestart:
    """Restarts of one run, between two starts by the user."""

    def __init__(self) -> None:
        self.pending: Restart | None = None
        self.gave_up: GiveUp | None = None
        self._policy: RestartPolicy | None = None
        self._received_hello = False  # from the current process
        self._step = 0  # of the newest checkpoint
        self._due_at = 0.0  # of the pending restart

    def on_restarted(self) -> None:
        """The pending restart was carried out."""
        self.pending, self._received_hello = None, False

    def add(self, event: AnyEvent) -> None:
        """Process an event of the trainer."""
        if isinstance(event, protocol.Hello):
            self._received_hello = True
            self._step = event.resumed_from_step or 0
            limit = event.config.get("restarts")
            self._policy = self._policy or RestartPolicy(limit if isinstance(limit, int) else 0, self._step)
        elif isinstance(event, protocol.Checkpoint):
            self._step = max(self._step, event.step)

    def on_exited(self, exit_code: int, now: float, *, crashed: bool = False, error: str = "") -> None:
        """The trainer exited unexpectedly: sets `pending` or `gave_up`, if applicable.

        `error`: code of its error event.
        """
        ending = ProcessExit(exit_code, crashed=crashed, error=error, started=self._received_hello, step=self._step)
        decision = None if self._policy is None else self._policy.decide(ending)
        if isinstance(decision, Restart):
            self.pending, self._due_at = decision, now + decision.delay_s
        else:
            self.gave_up = decision

    def skip_countdown(self) -> None:
        """Restart now."""
        self._due_at = 0.0

    def remaining_s(self, now: float) -> float:
        """Seconds until the pending restart, at least 0."""
        return max(0.0, self._due_at - now)

    def is_due(self, now: float) -> bool:
        return self.pending is not None and now >= self._due_at
