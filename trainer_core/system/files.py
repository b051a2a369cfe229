"""File operations that survive crashes, full disks and Windows.

On Windows, replacing or deleting a file that another program holds open (antivirus, indexer, viewer) fails for a moment
with WinError 5 or 32; such operations are retried. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from trainer_core.messages import TraindeckError

T = TypeVar("T")

_SHARING_VIOLATIONS: Final = (5, 32, 33)
_RETRY_SECONDS: Final = 10.0
_DISK_FULL: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_WINDOWS_DISK_FULL: Final = (39, 112)
_FSYNC_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # network and FUSE disks, for folders


def retry_sharing_violation(action: Callable[[], T], seconds: float = _RETRY_SECONDS) -> T:
    """Run `action`, and retry sharing violations for up to `seconds`."""
    deadline, wait = time.monotonic() + seconds, 0.01
    while True:
        try:
            return action()
        except OSError as error:
            if not is_sharing_violation(error) or time.monotonic() > deadline:
                raise
            time.sleep(wait)
            wait = min(wait * 2, 0.1)  # a frequent reader leaves only short gaps


def is_sharing_violation(error: OSError) -> bool:
    """Whether Windows refuses because another program holds the file, which is temporary."""
    number = getattr(error, "winerror", None)
    if number is None:  # `open` uses the C library, which reports only its own number
        return os.name == "nt" and error.errno == errno.EACCES
    return number in _SHARING_VIOLATIONS


def open_with_retry(path: Path) -> BufferedReader:
    """Open a file for reading; on Windows, retry while an antivirus holds it exclusively."""
    return retry_sharing_violation(lambda: path.open("rb"))


def replace(source: Path, target: Path, seconds: float = _RETRY_SECONDS) -> None:
    """`os.replace` with retries, durable: flushes the folder afterwards."""
    retry_sharing_violation(lambda: source.replace(target), seconds)
    fsync_folder(target.parent)


def remove_tree(path: Path, seconds: float = _RETRY_SECONDS) -> None:
    """Delete a folder with retries. A missing one is fine."""
    with contextlib.suppress(FileNotFoundError):
        retry_sharing_violation(lambda: shutil.rmtree(path), seconds)


def fsync_file(path: Path) -> None:
    """Flush the content of `path` to disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Flush a rename to disk. Windows has no such call (and needs none on NTFS)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _FSYNC_UNSUPPORTED:
            raise
    finally:
        os.close(handle)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file; readers see either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: on Windows it tries thousands of names in a read-only folder
    # (https://github.com/python/cpython/issues/66305), and its files are private to the user. Not `secrets`: it loads
    # OpenSSL, 4 MB that the window does not need.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_writable(path: Path) -> None:
    """Raises `OSError` if `write_atomic` cannot create a file beside `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    temporary.touch(exist_ok=False)
    temporary.unlink()


@contextlib.contextmanager
def os_lock(file: BinaryIO) -> Iterator[None]:
    """Hold the system's lock on an open file; released when the process exits.

    No effect on file systems without locks (some network disks).
    """
    held = _set_os_lock(file, acquire=True)
    try:
        yield
    finally:
        if held:
            file.flush()
            _set_os_lock(file, acquire=False)


if sys.platform == "win32":
    import msvcrt

    _LOCK_OFFSET: Final = 1 << 30  # locks are mandatory: use a byte that nobody reads

    def _set_os_lock(file: BinaryIO, acquire: bool) -> bool:
        place = file.tell()
        try:
            file.seek(_LOCK_OFFSET)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if acquire else msvcrt.LK_UNLCK, 1)  # waits up to 10 s
        except OSError:
            return False
        finally:
            file.seek(place)
        return True

else:
    import fcntl

    def _set_os_lock(file: BinaryIO, acquire: bool) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX if acquire else fcntl.LOCK_UN)
        except OSError:
            return False
        return True


def sha256(path: Path) -> str:
    """Hex digest of a file's content, read in chunks."""
    import hashlib  # here: OpenSSL takes 4 MB, which the window does not need

    with open_with_retry(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def truncate_name(name: str, max_bytes: int) -> str:
    """The start of a file name, at most `max_bytes` long on Linux."""
    return name.encode("utf-8", "ignore")[:max_bytes].decode("utf-8", "ignore")


def folder_size(path: Path) -> int:
    """Bytes of all files below `path`; files that disappear meanwhile are skipped."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def free_bytes(path: Path) -> int:
    """Free space on the disk of `path` (or of its nearest folder that exists)."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


@contextlib.contextmanager
def translate_os_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Convert an `OSError` of writing below `path` to `disk.full` or `disk.not_writable`."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL or getattr(error, "winerror", None) in _WINDOWS_DISK_FULL:
            raise disk_full_error(path, needed, error) from error
        reason = error.strerror or type(error).__name__
        raise TraindeckError("disk.not_writable", detail=str(error), path=str(path), reason=reason) from error


def disk_full_error(path: Path, needed: int, error: Exception | None = None) -> TraindeckError:
    """The `disk.full` error for a write of `needed` bytes at `path`."""
    mib = 1024 * 1024
    free_mib = free_bytes(path) // mib + 1  # the message says "less than"
    needed_mib = max(-(-needed // mib), free_mib)
    return TraindeckError("disk.full", str(error or ""), path=str(path), needed_mib=needed_mib, free_mib=free_mib)
