"""Python garbage collection outside of the steps.

A full collection takes tens of milliseconds with torch loaded, at arbitrary moments. Objects that exist when training
begins are frozen; the rest is collected at evaluations and checkpoints, and between steps at most for a thousandth of
the time.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Final

_SHARE: Final = 0.001  # of the time, for collections between steps
_MIN_INTERVAL_S: Final = 5.0  # between two such collections


class GarbageCollector:
    """Collects on request and measures the cost."""

    def __init__(self) -> None:
        self._due = 0.0
        self._cost = 0.0

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable automatic collection inside the context."""
        enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.collect()
        try:
            yield
        finally:
            gc.unfreeze()
            if enabled:
                gc.enable()

    def collect(self) -> None:
        since = time.perf_counter()
        gc.collect()
        now = time.perf_counter()
        self._cost = now - since
        self._due = now + max(_MIN_INTERVAL_S, self._cost / _SHARE)

    def collect_if_due(self) -> None:
        """Collect between two steps, if due."""
        if time.perf_counter() >= self._due:
            self.collect()
