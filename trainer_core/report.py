"""How long work tells what it does and hears that it should stop, without knowing who listens.

Preparation, training and evaluation take a `Reporter`. The command line gives one that writes events
and reads commands; tests and libraries use `Quiet`.
No torch, no Qt.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

from trainer_core.messages import Value
from trainer_core.protocol import PhaseName

Unit = Literal["steps", "bytes", "documents", "tokens", "batches", "files", "trials"]


class StopRequested(Exception):  # noqa: N818 - not an error: somebody asked
    """Raised by `Reporter.poll` where work may end: nothing half-done is left by it."""

    def __init__(self, reason: Literal["stopped", "parent_lost"] = "stopped") -> None:
        super().__init__(reason)
        self.reason: Literal["stopped", "parent_lost"] = reason


class Reporter(Protocol):
    """What long work may say. Every method is cheap: call it as often as is convenient."""

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        """How far the work is. Sent on at most a few times a second, with an estimate of the end."""

    def warn(self, code: str, **params: Value) -> None:
        """A warning by its code of `messages.CATALOGUE`."""

    def trying(self, path: str) -> None:
        """A fast path (a name of `messages.engine.PATHS`) is compared with the reference now; compiling takes long."""

    def poll(self) -> None:
        """Take waiting commands. Waits here while paused; raises `StopRequested` when asked to stop."""

    def breakable(self) -> AbstractContextManager[None]:
        """Around work that cannot poll and of which nothing is kept: a Stop raises `StopRequested` anywhere in it."""


class Quiet:
    """A reporter that says nothing and never stops."""

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        pass

    def warn(self, code: str, **params: Value) -> None:
        pass

    def trying(self, path: str) -> None:
        pass

    def poll(self) -> None:
        pass

    def breakable(self) -> AbstractContextManager[None]:
        return nullcontext()
