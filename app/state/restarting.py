"""Starting a run again by itself after a failure that passes: when, how often, and until when a person may object.

The rules are `trainer_core.restarts`; here is the countdown. Whoever owns it passes the trainer's events and its end,
and asks `is_due` from a timer; `now` is in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.restarts import Ending, GiveUp, Restart, Restarts


@dataclass(frozen=True, slots=True)
class Pending:
    """A restart that is counted down to."""

    attempt: int  # from 1, since the last progress
    of: int
    reason: str  # code of messages.CATALOGUE
    step: int  # of the checkpoint that it goes on from; 0: from the beginning
    due: float

    def seconds(self, now: float) -> float:
        """Until the restart; never below 0."""
        return max(0.0, self.due - now)


class Restarting:
    """The restarts of one run, from a person's Start or Resume to the next."""

    def __init__(self) -> None:
        self.began_by_person()

    def began_by_person(self) -> None:
        """A new start: whatever was pending is off, and attempts are counted anew."""
        self.pending: Pending | None = None
        self.gave_up: GiveUp | None = None
        self._restarts: Restarts | None = None
        self._greeted = False  # by the present process
        self._step = 0

    def began_by_itself(self) -> None:
        """The restart that was pending is made."""
        self.pending, self._greeted = None, False

    def add(self, event: AnyEvent) -> None:
        """Take one event of the trainer."""
        match event:
            case protocol.Hello():
                self._greeted = True
                self._step = event.resumed_from_step or 0
                limit = event.config.get("restarts")
                if self._restarts is None:
                    self._restarts = Restarts(limit if isinstance(limit, int) else 0, self._step)
            case protocol.Checkpoint():
                self._step = max(self._step, event.step)
            case _:
                pass

    def ended(self, exit_code: int, now: float, *, crashed: bool = False, error: str = "") -> None:
        """The trainer is gone and nobody had asked for it: `pending` or `gave_up` says what follows, if anything.

        `error`: code of the error that it sent.
        """
        if self._restarts is None:
            return
        ending = Ending(exit_code, crashed=crashed, error=error, began=self._greeted, step=self._step)
        match self._restarts.after(ending):
            case Restart(attempt, of, wait_s, reason):
                self.pending = Pending(attempt, of, reason, self._step, now + wait_s)
            case GiveUp() as given_up:
                self.gave_up = given_up
            case None:
                pass

    def cancel(self) -> None:
        """A person does not want it."""
        self.pending = None

    def hurry(self, now: float) -> None:
        """A person does not want to wait for it."""
        if self.pending is not None:
            waiting = self.pending
            self.pending = Pending(waiting.attempt, waiting.of, waiting.reason, waiting.step, now)

    def is_due(self, now: float) -> bool:
        return self.pending is not None and now >= self.pending.due
