"""Persistent caches: JSON objects whose loss or damage only costs time.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from trainer_core.runs import run_dir
from trainer_core.system import files


def read_entries(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        loaded = json.loads(path.read_bytes())
        if isinstance(loaded, dict):
            return loaded
    return {}


def write_entries(path: Path, entries: dict[str, Any], max_entries: int) -> None:
    """Write the newest entries. A folder that is not writable is ignored."""
    newest = dict(list(entries.items())[-max_entries:])
    with contextlib.suppress(OSError):
        files.write_atomic(path, json.dumps(newest, ensure_ascii=False, indent=1).encode("utf-8"))


class MeasurementCache:
    """Measurements in `cache/engine.json`, so that the same command selects the same fast paths again."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or run_dir.home() / "cache" / "engine.json"

    def get(self, *key: object) -> dict[str, Any] | None:
        """The stored value, if any."""
        found = read_entries(self.path).get(_format_key(key))
        return found if isinstance(found, dict) else None

    def store(self, value: dict[str, Any], *key: object) -> None:
        """Store plain values."""
        known = read_entries(self.path)
        known.pop(_format_key(key), None)
        write_entries(self.path, {**known, _format_key(key): value}, max_entries=300)


def _format_key(parts: tuple[object, ...]) -> str:
    return " | ".join(json.dumps(part, sort_keys=True, default=str, ensure_ascii=False) for part in parts)
