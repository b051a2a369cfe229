"""Persistent cache of measurements on this machine.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

from trainer_core.runs import run_dir
from trainer_core.system import files

_MAX_ENTRIES: Final = 300  # newest entries to keep


class MeasurementCache:
    """Measurements in `cache/engine.json`, so that the same command selects the same way again.

    A damaged or read-only file only costs another measurement.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or run_dir.home() / "cache" / "engine.json"

    def get(self, *key: object) -> dict[str, Any] | None:
        """The stored value, if any."""
        found = self._read().get(_format_key(key))
        return found if isinstance(found, dict) else None

    def store(self, value: dict[str, Any], *key: object) -> None:
        """Store plain values."""
        known = self._read()
        known.pop(_format_key(key), None)
        known[_format_key(key)] = value
        newest = dict(list(known.items())[-_MAX_ENTRIES:])
        with contextlib.suppress(OSError):
            files.write_atomic(self.path, json.dumps(newest, ensure_ascii=False, indent=1).encode("utf-8"))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _format_key(about: tuple[object, ...]) -> str:
    return " | ".join(json.dumps(part, sort_keys=True, default=str, ensure_ascii=False) for part in about)
