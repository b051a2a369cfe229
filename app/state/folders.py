"""Where to look for files first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PATIENCE_S: Final = 0.1


def first_there(folders: Iterable[Path]) -> Path | None:
    """The first of them that is there; None: none is, or a share that has gone gives no answer (for half a minute)."""
    found: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    wanted = list(folders)

    def look() -> None:
        found.put(next((folder for folder in wanted if folder.is_dir()), None))

    threading.Thread(target=look, daemon=True).start()
    try:
        return found.get(timeout=_PATIENCE_S)
    except queue.Empty:
        return None
