"""Start folders of file dialogs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 0.1


def first_existing(folders: Iterable[Path]) -> Path | None:
    """The first existing folder; None: none exists. A disconnected share blocks for about half a minute."""
    found: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    wanted = list(folders)

    def look() -> None:
        found.put(next((folder for folder in wanted if folder.is_dir()), None))

    threading.Thread(target=look, daemon=True).start()
    try:
        return found.get(timeout=_TIMEOUT_S)
    except queue.Empty:
        return None
