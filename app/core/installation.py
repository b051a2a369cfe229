"""Which packages this environment has. `train_gpu setup` installs the window's own first and PyTorch last."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QObject, Signal

from app.texts import tr

Part = Literal["data", "all"]
"""What a command needs: every package but PyTorch, or all."""


class Installation(QObject):
    """State of the environment of this process. There is one, `installation`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.has_data = self.is_complete = True
        self.can_undo_update = False

    def read(self) -> None:
        """Read what the last setup recorded. An environment without a record, as of a developer, is complete."""
        environment = Path(sys.prefix)
        recorded = _read_complete(environment)
        self.has_data = self.is_complete = recorded is not False
        self.can_undo_update = recorded is not None and bool(_read_complete(environment.with_name(".venv.old")))

    def on_ready(self, part: Part) -> None:
        """Setup has installed a part, while this process runs."""
        importlib.invalidate_caches()
        self.has_data = True
        self.is_complete = self.is_complete or part == "all"
        self.changed.emit()

    def missing_reason(self, part: Part) -> str:
        """Why what needs `part` is not possible yet; empty: it is."""
        if self.is_complete or (part == "data" and self.has_data):
            return ""
        return tr("installation.needs_data" if part == "data" else "installation.needs_torch")


def _read_complete(environment: Path) -> bool | None:
    """Whether setup has completed an environment; None: it has no record."""
    try:
        state = json.loads((environment / "traindeck.json").read_bytes())
        return isinstance(state, dict) and bool(state.get("complete"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return False


installation = Installation()
