"""Interface of a tracker. Each module of a tracker has `start`, which returns one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from trainer_core.system import files


class Tracker(Protocol):
    """Called in the child process, from one thread. Any exception is reported once, and logging continues."""

    def rewind(self, step: int) -> bool:
        """Discard what was logged from `step` on, which is repeated. False: not possible."""

    def log_metrics(self, step: int, values: Mapping[str, float], time: float) -> None:
        """Log values by name, such as `train/loss`. `time`: seconds since the epoch."""

    def log_text(self, step: int, name: str, columns: Mapping[str, str]) -> None:
        """Log texts by title, such as prompt and answer of a sample."""

    def finish(self, succeeded: bool) -> None:
        """Write or upload the rest. `succeeded`: the run finished or was stopped on request."""


def stored_id(path: Path) -> str:
    """Identifier of a run in its tracker, which a resumed run continues; empty: none."""
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="ascii", errors="ignore").strip()
        return text if text.isalnum() else ""
    return ""


def store_id(path: Path, identifier: str) -> str:
    """Store the identifier of a run. Returns it."""
    with contextlib.suppress(OSError):
        files.write_atomic(path, identifier.encode("ascii"))
    return identifier


Report = Callable[[Exception], None]
"""Reports a problem after which logging continues."""
