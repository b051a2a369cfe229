"""An idle loop beside the window: the gaps that it has, the scheduler made.

    python -m bench.window_idle

Sleeps 5 ms at a time until its input ends, then prints as JSON when it was late, and how much: (seconds of the
machine's clock, ms).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Final

_SLEEP_S: Final = 0.005
_LATE_MS: Final = 5.0  # less is not kept


class Idle:
    """The idle loop as a process of its own, from now until `gaps`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.window_idle"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._gaps: list[tuple[float, float]] | None = None

    def longest(self, begin: float, end: float) -> float:
        """ms, of the gaps within two times of `time.monotonic`; 0 where it was never late."""
        if self._gaps is None:
            self._gaps = json.loads(self._process.communicate()[0])
        return max((late for at, late in self._gaps if begin <= at <= end), default=0.0)


def main() -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), ended.set()), daemon=True).start()
    gaps: list[tuple[float, float]] = []
    last = time.monotonic()
    while not ended.is_set():
        time.sleep(_SLEEP_S)
        now = time.monotonic()
        late = 1000 * (now - last - _SLEEP_S)
        if late > _LATE_MS:
            gaps.append((now, late))
        last = now
    sys.stdout.write(json.dumps(gaps))


if __name__ == "__main__":
    main()
