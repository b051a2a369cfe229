"""The folder of an export: which may be written, and how it appears completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_core.messages import TraindeckError
from trainer_core.runs import run_dir
from trainer_core.system import files

_MAX_NAME_CHARS: Final = 80  # `safe_name` truncates longer names


def resolve_target(folder: Path, *, windows: bool = os.name == "nt") -> Path:
    """The absolute path of a folder that can be replaced; links are followed.

    Raises `export.drive` or `export.bad_name`.
    """
    if windows and run_dir.safe_name(folder.name[:_MAX_NAME_CHARS]) != folder.name[:_MAX_NAME_CHARS].strip(" ."):
        raise TraindeckError("export.bad_name", name=folder.name, other=run_dir.safe_name(folder.name))
    # `resolve` for links only: on Windows it replaces a network drive by its server.
    target = folder.resolve() if folder.is_symlink() else Path(os.path.abspath(folder))  # noqa: PTH100
    # Not `Path.is_mount`: on Windows only from Python 3.12 on.
    if not target.name or os.path.ismount(target):
        raise TraindeckError("export.drive", path=str(target), example=str(target / "model"))
    return target


def require_empty(target: Path) -> None:
    """Raises `export.not_empty` or `disk.not_writable`."""
    try:
        taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
    except OSError as error:
        raise TraindeckError("disk.not_writable", path=str(target), reason=error.strerror or "?") from error
    if taken:
        raise TraindeckError("export.not_empty", path=str(target))


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that replaces it on success and is deleted on failure."""
    working = target.with_name(f".{target.name[:_MAX_NAME_CHARS]}.exporting")
    try:
        files.remove_tree(working)  # of an export that was killed
        working.mkdir(parents=True)
        yield working
        if target.is_dir():  # empty; Windows does not rename to an existing folder
            target.rmdir()
        files.replace(working, target)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(working)
        raise
