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

    def read(self) -> None:
        """Read what the last setup recorded. An environment without a record, as of a developer, is complete."""
        try:
            state = json.loads((Path(sys.prefix) / "traindeck.json").read_bytes())
            self.is_complete = isinstance(state, dict) and bool(state.get("complete"))
        except FileNotFoundError:
            self.is_complete = True
        except (OSError, ValueError):
            self.is_complete = False
        self.has_data = self.is_complete

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


installation = Installation()
