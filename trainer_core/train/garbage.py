"""Python's garbage collection, kept out of the steps.

A full collection takes tens of milliseconds with torch loaded, at moments that nobody chooses. What is there
when training begins is set aside for good; the rest is collected where the loop rests anyway, and between
steps about as often as costs a thousandth of the time.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Final

_SHARE: Final = 0.001  # of the time, for collecting between steps
_SELDOM_S: Final = 5.0  # at least so long between two collections there


class Garbage:
    """Collects when asked, and remembers what it cost."""

    def __init__(self) -> None:
        self._due = 0.0
        self._cost = 0.0

    @contextlib.contextmanager
    def kept_out(self) -> Iterator[None]:
        """No collection but those asked for. Afterwards everything is as it was."""
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
        self._due = now + max(_SELDOM_S, self._cost / _SHARE)

    def collect_if_due(self) -> None:
        """Between two steps."""
        if time.perf_counter() >= self._due:
            self.collect()
