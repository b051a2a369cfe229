"""File writes that survive a crash, a full disk, and Windows.

On Windows, replacing or deleting a file that another program holds open (a virus scanner, an
indexer, a viewer) fails for a moment with WinError 5 or 32, so those are tried again for a while.
No torch, no Qt.
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
_CANNOT_FLUSH: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # network and FUSE disks refuse for folders


def retry_sharing(action: Callable[[], T], seconds: float = _RETRY_SECONDS) -> T:
    """Run `action`, again while Windows says that somebody holds the file, for up to `seconds`."""
    deadline, wait = time.monotonic() + seconds, 0.01
    while True:
        try:
            return action()
        except OSError as error:
            if not is_shared(error) or time.monotonic() > deadline:
                raise
            time.sleep(wait)
            wait = min(wait * 2, 0.1)  # a reader that comes again and again leaves but moments


def is_shared(error: OSError) -> bool:
    """Whether Windows refuses because another program holds the file: that passes."""
    number = getattr(error, "winerror", None)
    if number is None:  # `open` goes through the C library, which tells only its own number
        return os.name == "nt" and error.errno == errno.EACCES
    return number in _SHARING_VIOLATIONS


def opened(path: Path) -> BufferedReader:
    """A file to read; on Windows as soon as nobody has it for himself alone, as an antivirus has what is new."""
    return retry_sharing(lambda: path.open("rb"))


def replace(source: Path, target: Path, seconds: float = _RETRY_SECONDS) -> None:
    """`os.replace`, tried again on sharing violations, and durable: the folder is flushed after it."""
    retry_sharing(lambda: source.replace(target), seconds)
    flush_folder(target.parent)


def remove_tree(path: Path, seconds: float = _RETRY_SECONDS) -> None:
    """Delete a folder, tried again on sharing violations. One that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        retry_sharing(lambda: shutil.rmtree(path), seconds)


def flush_file(path: Path) -> None:
    """Ask the disk to hold what was written to `path`."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Ask the disk to hold a rename. Windows has no such call (and needs none on NTFS)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
    finally:
        os.close(handle)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: on Windows it tries thousands of names in a folder that cannot be written
    # (https://github.com/python/cpython/issues/66305), and its files are private to the user.
    # Not `secrets`: it loads OpenSSL, 4 MB that the window does not need.
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


@contextlib.contextmanager
def guarded(file: BinaryIO) -> Iterator[None]:
    """Hold the system's own lock on an open file for a moment; it goes away with the process.

    Where the file system has no such locks (some network disks) it does nothing.
    """
    held = _system_lock(file, take=True)
    try:
        yield
    finally:
        if held:
            file.flush()
            _system_lock(file, take=False)


if sys.platform == "win32":
    import msvcrt

    _GUARD_BYTE: Final = 1 << 30  # locks there are mandatory, so not a byte that anybody reads

    def _system_lock(file: BinaryIO, take: bool) -> bool:
        place = file.tell()
        try:
            file.seek(_GUARD_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if take else msvcrt.LK_UNLCK, 1)  # waits up to 10 s
        except OSError:
            return False
        finally:
            file.seek(place)
        return True

else:
    import fcntl

    def _system_lock(file: BinaryIO, take: bool) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX if take else fcntl.LOCK_UN)
        except OSError:
            return False
        return True


def sha256(path: Path) -> str:
    """Hex digest of a file's content, read in bounded pieces."""
    import hashlib  # here: OpenSSL takes 4 MB, which the window never needs

    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def folder_size(path: Path) -> int:
    """Bytes of all files below `path`; what vanishes meanwhile counts as nothing."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def free_bytes(path: Path) -> int:
    """Free space on the disk of `path` (or of its nearest folder that exists)."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that the disk (or the quota) is full."""
    return error.errno in _DISK_FULL or getattr(error, "winerror", None) in _WINDOWS_DISK_FULL


@contextlib.contextmanager
def said_plainly(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn an `OSError` of writing below `path` into `disk.full` or `disk.not_writable`."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(path, needed, error) from error
        reason = error.strerror or type(error).__name__
        raise TraindeckError("disk.not_writable", detail=str(error), path=str(path), reason=reason) from error


def disk_full(path: Path, needed: int, error: OSError | None = None) -> TraindeckError:
    """The `disk.full` error for a write of `needed` bytes at `path`."""
    mib = 1024 * 1024
    return TraindeckError(
        "disk.full",
        detail=str(error or ""),
        path=str(path),
        needed_mib=max(1, -(-needed // mib)),
        free_mib=free_bytes(path) // mib + 1,  # said as "less than"
    )
