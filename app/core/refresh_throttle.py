"""Adapts the refresh interval of the window to its CPU use."""

from __future__ import annotations

import time
from typing import Final

MIN_INTERVAL_MS: Final = 125
MAX_INTERVAL_MS: Final = 1000
_TARGET_CPU_SHARE: Final = 0.1  # of a core
_SAMPLE_INTERVAL_S: Final = 0.5  # Windows counts CPU time in units of 16 ms


class RefreshThrottle:
    """Measures the calling thread's CPU use. Many events, long curves or a slow machine increase the interval, up to a
    second.
    """

    def __init__(self) -> None:
        self.interval_ms = MIN_INTERVAL_MS
        self._last_wall_s, self._last_cpu_s = time.monotonic(), time.thread_time()

    def update(self) -> int:
        """Call with every frame; returns the interval until the next one."""
        wall, own = time.monotonic(), time.thread_time()
        if wall - self._last_wall_s >= _SAMPLE_INTERVAL_S:
            self.set_cpu_share((own - self._last_cpu_s) / (wall - self._last_wall_s))
            self._last_wall_s, self._last_cpu_s = wall, own
        return self.interval_ms

    def set_cpu_share(self, share: float) -> None:
        """Set the share of a core used since the last call."""
        wanted = self.interval_ms * share / _TARGET_CPU_SHARE
        if wanted < self.interval_ms:  # decrease gradually
            wanted = max(wanted, 0.7 * self.interval_ms)
        self.interval_ms = round(min(MAX_INTERVAL_MS, max(MIN_INTERVAL_MS, wanted)))
