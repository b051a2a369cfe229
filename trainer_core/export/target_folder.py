"""The folder of an export: which may be written, and how it appears completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_core.messages import TraindeckError
from trainer_core.runs import file_locks, run_dir
from trainer_core.system import files

_MAX_NAME_CHARS: Final = 80  # `safe_name` truncates longer names
_MAX_NAME_BYTES: Final = 240  # of 255 on Linux


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


def require_replaceable(target: Path) -> None:
    """Raises `export.current_folder`, `export.not_empty` or `disk.not_writable`."""
    try:
        is_current = target.is_dir() and target.samefile(os.curdir)
        taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
    except OSError as error:
        raise TraindeckError("disk.not_writable", path=str(target), reason=error.strerror or "?") from error
    if is_current:  # a shell in it would be left in a deleted folder; Windows refuses to rename to it
        raise TraindeckError("export.current_folder", path=str(target), example=str(target / "model"))
    if taken:
        raise TraindeckError("export.not_empty", path=str(target))


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that replaces it on success and is deleted on failure.

    Raises `export.in_progress` while another export writes to `target`, `export.disk_full` or `disk.not_writable`.
    """
    name = files.truncate_name(target.name, _MAX_NAME_BYTES)
    working, lock = target.with_name(f".{name}.exporting"), target.with_name(f".{name}.lock")
    with _translate_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_locks.file_lock(lock):
            try:
                files.remove_tree(working)  # of an export that was killed
                working.mkdir()
                yield working
                if target.is_dir():  # empty; Windows does not rename to an existing folder
                    target.rmdir()
                files.replace(working, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    files.remove_tree(working)
                raise


@contextlib.contextmanager
def _translate_errors(target: Path) -> Iterator[None]:
    """Report errors of the disk and of the lock with the path of `target`."""
    try:
        with files.translate_os_errors(target):
            yield
    except file_locks.LockHeldError as held:
        raise TraindeckError("export.in_progress", path=str(target), pid=str(held.pid)) from held
    except TraindeckError as error:
        if error.code not in ("disk.full", "disk.not_writable"):
            raise
        code = "export.disk_full" if error.code == "disk.full" else error.code
        raise TraindeckError(code, error.detail, **{**error.params, "path": str(target)}) from error
