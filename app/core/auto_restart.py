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
        self.reset()

    def reset(self) -> None:
        """Start by the user: cancel a pending restart and reset the count."""
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
            case Restart() as restart:
                self.pending, self._due_at = restart, now + restart.delay_s
            case GiveUp() as given_up:
                self.gave_up = given_up
            case None:
                pass

    def cancel(self) -> None:
        """Cancel the restart."""
        self.pending = None

    def skip_countdown(self, now: float) -> None:
        """Restart now."""
        self._due_at = min(self._due_at, now)

    def remaining_s(self, now: float) -> float:
        """Seconds until the pending restart, at least 0."""
        return max(0.0, self._due_at - now)

    def is_due(self, now: float) -> bool:
        return self.pending is not None and now >= self._due_at
