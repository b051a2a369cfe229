"""Where Traindeck's own files are: in a clone beside the packages, in an installed wheel inside this one (setup.py).

No torch, no Qt.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

WHEEL_FOLDER: Final = "program"
_PACKAGE: Final = Path(__file__).resolve().parents[1]
IS_INSTALLED: Final = (_PACKAGE / WHEEL_FOLDER).is_dir()
ROOT: Final = _PACKAGE / WHEEL_FOLDER if IS_INSTALLED else _PACKAGE.parent
"""Folder of presets, assets, docs and launcher."""
PROGRAM: Final = "traindeck" if IS_INSTALLED else "train_gpu.bat" if os.name == "nt" else "./train_gpu.sh"
"""The command in a terminal."""


def parent_of(name: str) -> Path:
    """Folder that holds `name`, a file or folder of the repository's root."""
    return _PACKAGE.parent if name in ("app", "trainer_core") else ROOT
