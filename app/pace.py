"""How often the window shows anew what comes in: so often that this takes little of a processor."""

from __future__ import annotations

import time
from typing import Final

OFTEN_MS: Final = 125
SELDOM_MS: Final = 1000
_SHARE: Final = 0.1  # of a core
_LOOK_S: Final = 0.5  # Windows counts processor time in steps of 16 ms


class Pace:
    """Follows what the calling thread takes of its core. A flood of events, long curves or a slow machine make frames
    rarer, one a second at the least, rather than the window busy."""

    def __init__(self) -> None:
        self.interval_ms = OFTEN_MS
        self._wall, self._own = time.monotonic(), time.thread_time()

    def look(self) -> int:
        """To be called with every frame: how long until the next one."""
        wall, own = time.monotonic(), time.thread_time()
        if wall - self._wall >= _LOOK_S:
            self.follow((own - self._own) / (wall - self._wall))
            self._wall, self._own = wall, own
        return self.interval_ms

    def follow(self, share: float) -> None:
        """Take note of the share of a core that was used since the last time."""
        wanted = self.interval_ms * share / _SHARE
        if wanted < self.interval_ms:  # little by little: one calm moment is no calm run
            wanted = max(wanted, 0.7 * self.interval_ms)
        self.interval_ms = round(min(SELDOM_MS, max(OFTEN_MS, wanted)))
