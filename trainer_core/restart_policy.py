"""Restart policy after transient failures: when, how often, and with what delay.

Pure rules: the supervisor (`supervisor.py` in a terminal, or the window) reports how a trainer exited and applies the
decision. Not used under `torchrun`, whose elastic agent restarts.

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainer_core import error_codes

_INITIAL_DELAY_S: Final = 5.0
_BACKOFF_FACTOR: Final = 3.0  # a driver reset or power supply needs longer to recover than a process
_MAX_DELAY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a trainer exited."""

    exit_code: int  # of the process; negative: a signal on POSIX
    crashed: bool = False  # `exit_code` is a signal number, as Qt reports it
    error: str = ""  # code of its `error` event; empty: none
    exited_silently: bool = False  # after `hello`, neither `done` nor `error` was sent
    started: bool = True  # `hello` was sent: Python, torch and the device work
    step: int = 0  # of the newest valid checkpoint; 0: none


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again after a delay. `attempt` counts from 1 since the last progress."""

    attempt: int
    limit: int
    delay_s: float
    reason: str  # message code
    step: int  # of the checkpoint to resume from; 0: from the beginning


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A transient failure that occurred too often without progress."""

    attempts: int
    reason: str


class RestartPolicy:
    """Counts restarts of one run. A newer valid checkpoint resets the count."""

    def __init__(self, limit: int, step: int = 0) -> None:
        self._limit, self._step = limit, step
        self._attempts = 0
        self._has_started = False

    def decide(self, ending: ProcessExit) -> Restart | GiveUp | None:
        """What to do now; None: it finished, was stopped, or failed permanently."""
        reason = _transient_code(ending)
        # A first start that fails before `hello` is a broken installation: report it at once.
        self._has_started = self._has_started or ending.started
        if not reason or not self._has_started or not self._limit:
            return None
        if ending.step > self._step:
            self._step, self._attempts = ending.step, 0
        if self._attempts >= self._limit:
            return GiveUp(self._attempts, reason)
        self._attempts += 1
        wait = min(_MAX_DELAY_S, _INITIAL_DELAY_S * _BACKOFF_FACTOR ** (self._attempts - 1))
        return Restart(self._attempts, self._limit, wait, reason, ending.step)


def _transient_code(ending: ProcessExit) -> str:
    """Code of a transient failure; empty: permanent, or no failure."""
    found = error_codes.classify_exit_code(ending.exit_code, crashed=ending.crashed)
    code = ending.error or (found.code if found is not None else "")
    return code if code in error_codes.TRANSIENT_CODES else ""
