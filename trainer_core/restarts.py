"""Going on by itself after a failure that passes: when, how often, and after which wait.

Rules alone: whoever watches a trainer (`supervisor.py` in a terminal, the window) says how it ended and does what is
decided. Under `torchrun` the elastic agent restarts, and nothing of this is used.

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainer_core import failures

_FIRST_WAIT_S: Final = 5.0
_GROWTH: Final = 3.0  # a driver that resets or a power supply that recovers needs longer than a process that starts
_LONGEST_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trainer ended, seen from outside."""

    exit_code: int  # of the process; negative: a signal on POSIX
    crashed: bool = False  # `exit_code` is a signal's number, as Qt says it
    error: str = ""  # code of the `error` event that it sent; empty: none
    vanished: bool = False  # it had begun, and neither `done` nor an `error` came
    began: bool = True  # it had said `hello`: Python, torch and the device had been there
    step: int = 0  # of the newest good checkpoint; 0: none


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again after a wait. `attempt` counts from 1 since the last progress."""

    attempt: int
    of: int
    wait_s: float
    reason: str  # code of messages.CATALOGUE


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The failure would pass, but has come again and again without progress in between."""

    attempts: int
    reason: str


class Restarts:
    """Counts restarts of one run. Progress, a newer good checkpoint, begins the count anew."""

    def __init__(self, limit: int, step: int = 0) -> None:
        self._limit, self._step = limit, step
        self._made = 0
        self._began = False

    def after(self, ending: Ending) -> Restart | GiveUp | None:
        """What to do now; None: it finished, was stopped, or failed for good."""
        reason = _transient(ending)
        # A first start that dies before it says anything is a broken installation, and is told at once.
        self._began = self._began or ending.began
        if not reason or not self._began or not self._limit:
            return None
        if ending.step > self._step:
            self._step, self._made = ending.step, 0
        if self._made >= self._limit:
            return GiveUp(self._made, reason)
        self._made += 1
        wait = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * _GROWTH ** (self._made - 1))
        return Restart(self._made, self._limit, wait, reason)


def _transient(ending: Ending) -> str:
    """The code of a failure that passes; empty: this one does not, or it is none."""
    if ending.error:  # the trainer knew, and ended by itself
        return ending.error if failures.is_transient(ending.error) else ""
    found = failures.of_exit_code(ending.exit_code, crashed=ending.crashed)
    return found.code if found is not None and found.transient else ""
