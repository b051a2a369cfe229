"""Data that needs no download: the Python standard library's own source, and generated exercises."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Final

PYTHON: Final = "builtin:python"
TASKS: Final = "builtin:tasks"
NEW_TASKS: Final = "builtin:new_tasks"
BUILTIN_DATASETS: Final = (PYTHON, TASKS, NEW_TASKS)

# Tests repeat themselves; idlelib, lib2to3 and turtledemo are programs of their own; encodings and the
# rest of the list are tables of numbers rather than code.
_EXCLUDED_FOLDERS: Final = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3",
    "turtledemo", "ensurepip", "encodings", "pydoc_data", "_bundled",
}  # fmt: skip
_EXCLUDED_FILES: Final = {"stringprep.py", "html/entities.py"}
_MAX_FILE_BYTES: Final = 512 * 1024


def list_python_library() -> tuple[Path, list[Path]]:
    """The folder of the standard library and its source files, in an order that is the same everywhere."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _EXCLUDED_FOLDERS and not name.startswith("config-")
        )
        for name in sorted(names):
            file = Path(folder, name)
            inner = file.relative_to(root).as_posix()
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and inner not in _EXCLUDED_FILES:
                found.append(file)
    found = [file for file in found if 0 < file.stat().st_size < _MAX_FILE_BYTES]
    return root, sorted(found, key=lambda file: file.relative_to(root).as_posix())
