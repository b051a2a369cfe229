"""Interface for progress and cancellation of long work.

Preparation, training and evaluation take a `Reporter`. The command line provides `RunContext`, which writes events and
reads commands; tests and libraries use `NullReporter`. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from trainer_core.messages import Value
from trainer_core.protocol import PhaseName, ProgressUnit

Unit = ProgressUnit


class StopRequested(Exception):  # noqa: N818 - a request, not an error
    """Raised by `Reporter.poll` where work may end without leaving anything incomplete."""

    def __init__(self, reason: Literal["stopped", "parent_lost"] = "stopped") -> None:
        super().__init__(reason)
        self.reason: Literal["stopped", "parent_lost"] = reason


class Reporter:
    """Receives progress of long work. Every method is cheap; by default it does nothing."""

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        """Report progress. Emitted at most a few times a second, with an estimate of the remaining time."""

    def warn(self, code: str, **params: Value) -> None:
        """Report a warning by its message code."""

    def phase(self, name: PhaseName) -> AbstractContextManager[None]:
        """Context for a phase, after which the previous one continues."""
        return nullcontext()

    def on_pause(self, context: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
        """Context in which every pause enters `context()`."""
        return nullcontext()

    def poll(self) -> None:
        """Apply pending commands. Waits while paused; raises `StopRequested` on a stop request."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Context for work that cannot poll and keeps nothing: a Stop raises `StopRequested` anywhere inside."""
        return nullcontext()


class NullReporter(Reporter):
    """A reporter that reports nothing and never stops."""
