"""Where things are, and small files of facts there."""

import json
import os
from pathlib import Path
from typing import Any

WINDOWS = os.name == "nt"
ROOT = Path(__file__).resolve().parents[1]
KEEP = ROOT / ".venv-setup"  # outlives .venv: the remembered choices and the lock
LOG = ROOT / "logs" / "setup.log"
SHORTCUTS = KEEP / "shortcuts.json"  # what `uninstall` removes beside folders of ours


def read_json(path: Path) -> "dict[str, Any]":
    """A JSON object from disk; nothing if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: "dict[str, Any]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")  # two set-ups may write their choices at once
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)
