"""What was found out before on this machine, in a file: the same question again has the same answer at once.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

from trainer_core import files
from trainer_core.runs import run_dir

_MEMORIES: Final = 300  # entries that are kept, the newest


class Memory:
    """What was measured before, in `cache/engine.json`, so that the same command chooses the same way again.

    A file that is damaged or cannot be written costs only another measurement.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or run_dir.home() / "cache" / "engine.json"

    def recall(self, *about: object) -> dict[str, Any] | None:
        """What was remembered about this."""
        found = self._read().get(_name(about))
        return found if isinstance(found, dict) else None

    def remember(self, value: dict[str, Any], *about: object) -> None:
        """Keep plain values."""
        known = self._read()
        known.pop(_name(about), None)
        known[_name(about)] = value
        newest = dict(list(known.items())[-_MEMORIES:])
        with contextlib.suppress(OSError):
            files.write_atomic(self.path, json.dumps(newest, ensure_ascii=False, indent=1).encode("utf-8"))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _name(about: tuple[object, ...]) -> str:
    return " | ".join(json.dumps(part, sort_keys=True, default=str, ensure_ascii=False) for part in about)
