"""Resumable, verified downloads of model files over HTTP.

A thread receives; the calling thread reports progress and polls, so that a Stop takes effect within a second whatever
the network does. A file is received into `NAME.incomplete`, which a later download continues, also one of another
process. It is moved into place once its hash matches. `huggingface_hub` 2.4 itself deletes incomplete files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar
from urllib.parse import urlsplit

from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.system import files

if TYPE_CHECKING:
    from hashlib import _Hash

    import httpx2

T = TypeVar("T")

OFFICIAL_ENDPOINT: Final = "https://huggingface.co"
_TICK_S: Final = 0.1
_TIMEOUT_S: Final = 15.0  # without any data
_ATTEMPTS: Final = 6  # without new data
_FIRST_WAIT_S: Final = 1.0  # doubles with each attempt
_TRANSIENT_STATUS: Final = (408, 425, 429, 500, 502, 503, 504)
_HASHED_BYTES: Final = 4 * 1024 * 1024
_OVERHEAD_BYTES: Final = 16 * 1024 * 1024  # links, folders and the file system


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    name: str  # relative path, `/`
    size: int
    url: str
    digest: str  # hexadecimal; empty: unknown
    is_sha256: bool = True  # else the ID of a Git blob

    def new_hash(self) -> _Hash:
        if self.is_sha256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """Files that a download fetches, and their targets. Sizes of what is on disk are read on each access."""

    name: str  # of the model, as given
    origin: str  # with the exact revision
    endpoint: str
    folder: Path  # of the complete model
    files: tuple[RemoteFile, ...]  # in the order of the download
    blobs: Path | None = None  # where the content is stored by its hash and linked from `folder`, as on the Hub
    locks: Path | None = None
    reference: Path | None = None  # file that records the folder's name, once it is complete
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc or self.endpoint

    @property
    def bytes_total(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def bytes_present(self) -> int:
        """Bytes on this disk, of complete and incomplete files."""
        return sum(self._bytes_present(file) for file in self.files)

    @property
    def bytes_to_fetch(self) -> int:
        return self.bytes_total - self.bytes_present

    @property
    def free_bytes(self) -> int:
        """Free space on the disk of the download."""
        return files.free_bytes(self.folder)

    def target(self, file: RemoteFile) -> Path:
        return self.folder / file.name

    def blob(self, file: RemoteFile) -> Path:
        """Where the complete content is stored first."""
        return self.target(file) if self.blobs is None else self.blobs / file.digest

    def incomplete(self, file: RemoteFile) -> Path:
        blob = self.blob(file)
        return blob.with_name(f"{blob.name}.incomplete")

    def _bytes_present(self, file: RemoteFile) -> int:
        if self.target(file).is_file() or self.blob(file).is_file():
            return file.size
        with contextlib.suppress(OSError):
            return min(file.size, self.incomplete(file).stat().st_size)
        return 0


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """Raised in the thread when the caller has stopped."""


class DownloadControl:
    """State that the thread shares with its caller: progress, pause and cancellation."""

    def __init__(self) -> None:
        self.received = 0  # bytes
        self._cancelled, self._running = threading.Event(), threading.Event()
        self._running.set()

    def check(self) -> None:
        """Wait while paused. Raises `Cancelled`."""
        self._running.wait()
        if self._cancelled.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait. Raises `Cancelled`."""
        self._cancelled.wait(seconds)
        self.check()

    def poll(self, reporter: Reporter) -> None:
        """Let the reporter pause or stop the thread."""
        self._running.clear()
        try:
            reporter.poll()
        except BaseException:
            self._cancelled.set()
            raise
        finally:
            self._running.set()


def run_cancellable(
    work: Callable[[DownloadControl], T],
    reporter: Reporter,
    report: Callable[[DownloadControl], None] = lambda control: None,
) -> T:
    """Run `work` in a thread and poll meanwhile. After a Stop the thread ends on its own, at its next check."""
    control, future = DownloadControl(), futures.Future[T]()

    def run() -> None:
        try:
            future.set_result(work(control))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    threading.Thread(target=run, name="download", daemon=True).start()  # a daemon: no exit waits for a silent server
    while not future.done():
        control.poll(reporter)
        report(control)
        futures.wait([future], _TICK_S)
    return future.result()


def download(plan: DownloadPlan, reporter: Reporter, check: Callable[[str], None] = lambda name: None) -> None:
    """Fetch what is missing. `check` is called after each file with its name, and may raise.

    Raises `disk.full` before the first byte if the disk is too small, `hub.interrupted`, `hub.gated`, `hub.refused`,
    `hub.file_changed` or `disk.not_writable`.
    """
    needed = plan.bytes_to_fetch
    if needed and needed + _OVERHEAD_BYTES > plan.free_bytes:
        raise files.disk_full_error(plan.folder, needed + _OVERHEAD_BYTES)
    present, total = plan.bytes_present, plan.bytes_total

    def work(control: DownloadControl) -> None:
        for file in plan.files:
            if plan.blobs is None:
                _remove_outdated(plan.target(file), file, control)
            if not plan.target(file).is_file():
                with _lock(plan, file):
                    control.check()
                    _fetch(plan, file, control)
            check(file.name)

    def report(control: DownloadControl) -> None:
        reporter.progress("loading", min(present + control.received, total), total, "bytes")

    run_cancellable(work, reporter, report)
    reporter.progress("loading", total, total, "bytes")
    if plan.reference is not None:
        with files.translate_os_errors(plan.reference):
            files.write_atomic(plan.reference, plan.folder.name.encode("ascii"))


@contextlib.contextmanager
def _lock(plan: DownloadPlan, file: RemoteFile) -> Iterator[None]:
    """The lock that `huggingface_hub` holds while it downloads the same content."""
    if plan.locks is None:
        yield
        return
    from huggingface_hub.utils import WeakFileLock

    with files.translate_os_errors(plan.locks):
        plan.locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(plan.locks / f"{file.digest}.lock"):
        yield


def _remove_outdated(target: Path, file: RemoteFile, control: DownloadControl) -> None:
    """Delete a file of an interrupted download that the repository has replaced since."""
    if target.is_file() and file.digest:
        with files.translate_os_errors(target):
            with target.open("rb") as content:
                digest, size = _hash_existing(file, content, control)
            if (size, digest.hexdigest()) != (file.size, file.digest):
                target.unlink()


def _fetch(plan: DownloadPlan, file: RemoteFile, control: DownloadControl) -> None:
    blob, incomplete = plan.blob(file), plan.incomplete(file)
    if plan.target(file).is_file():  # another process was faster
        return
    with files.translate_os_errors(plan.folder, file.size):
        plan.target(file).parent.mkdir(parents=True, exist_ok=True)
        blob.parent.mkdir(parents=True, exist_ok=True)
        if not blob.is_file():
            with incomplete.open("a+b") as output:
                resumed = output.tell() > 0
                is_valid = _receive(plan, file, output, control)
                if not is_valid and resumed:  # from damaged content, or of another version
                    output.truncate(0)
                    is_valid = _receive(plan, file, output, control)
            if not is_valid:
                incomplete.unlink()
                raise TraindeckError("hub.file_changed", name=plan.name, file=file.name, host=plan.host)
            files.fsync_file(incomplete)
            files.replace(incomplete, blob)
        if plan.blobs is not None:
            _link(blob, plan.target(file))


def _link(blob: Path, target: Path) -> None:
    """Link `target` to `blob`, or move it there where links are not permitted, as `huggingface_hub` does."""
    with contextlib.suppress(OSError, NotImplementedError):
        target.unlink(missing_ok=True)  # a link to what no longer exists
        target.symlink_to(os.path.relpath(blob, target.parent))
    if not target.is_file():  # not permitted, or not followed
        target.unlink(missing_ok=True)
        files.replace(blob, target)


def _receive(plan: DownloadPlan, file: RemoteFile, output: BinaryIO, control: DownloadControl) -> bool:
    """Append what is missing to `output`. Returns whether the whole content has the expected size and hash."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    digest, done = _hash_existing(file, output, control)
    if done > file.size:
        output.truncate(0)
        digest, done = file.new_hash(), 0
    attempt, reason = 0, "it ends too early"
    while done < file.size:
        before = done
        try:
            with _open_stream(plan, file, done) as response:
                if done and response.status_code != httpx2.codes.PARTIAL_CONTENT:  # the server ignores ranges
                    output.truncate(0)
                    control.received -= done
                    digest, done, before = file.new_hash(), 0, 0
                for chunk in response.iter_bytes():
                    control.check()
                    output.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    control.received += len(chunk)
                    if done > file.size:
                        return False
        except httpx2.RequestError as error:
            reason = str(error) or type(error).__name__
        except (HfHubHTTPError, OfflineModeIsEnabled) as error:
            if not isinstance(error, HfHubHTTPError) or error.response.status_code not in _TRANSIENT_STATUS:
                raise http_error(plan.name, plan.endpoint, error) from error
            reason = f"HTTP {error.response.status_code}"
        attempt = 1 if done > before else attempt + 1
        if done < file.size:
            if attempt >= _ATTEMPTS:
                raise TraindeckError("hub.interrupted", name=plan.name, host=plan.host, reason=reason[:200])
            control.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
    return done == file.size and file.digest in ("", digest.hexdigest())


def _hash_existing(file: RemoteFile, content: BinaryIO, control: DownloadControl) -> tuple[_Hash, int]:
    """Hash of what an earlier download received, and its size."""
    digest, done = file.new_hash(), 0
    content.seek(0)
    while chunk := content.read(_HASHED_BYTES):
        control.check()
        digest.update(chunk)
        done += len(chunk)
    return digest, done


@contextlib.contextmanager
def _open_stream(plan: DownloadPlan, file: RemoteFile, start: int) -> Iterator[httpx2.Response]:
    from huggingface_hub.utils import get_session, hf_raise_for_status

    headers = {**plan.headers, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with get_session().stream("GET", file.url, headers=headers, timeout=_TIMEOUT_S) as response:
        if response.is_error:
            response.read()  # the reason
        hf_raise_for_status(response)
        yield response


def _is_not_found(error: Exception) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.RepositoryNotFoundError) or (
        isinstance(error, errors.HfHubHTTPError) and error.response.status_code == 404  # mirrors give no code
    )


def http_error(name: str, endpoint: str, error: Exception) -> TraindeckError:
    """The message of an error of `huggingface_hub` or `httpx2`."""
    from huggingface_hub import errors

    host = urlsplit(endpoint).netloc or endpoint
    match error:
        case errors.GatedRepoError():
            return TraindeckError("hub.gated", str(error), name=name, url=f"{OFFICIAL_ENDPOINT}/{name}")
        case errors.RevisionNotFoundError():
            return TraindeckError("hub.no_revision", str(error), name=name, host=host)
        case errors.HfHubHTTPError() if _is_not_found(error):
            return TraindeckError("hub.not_found", str(error), name=name, host=host)
        case errors.HfHubHTTPError():
            return TraindeckError("hub.refused", str(error), name=name, host=host, status=error.response.status_code)
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    reason = "HF_HUB_OFFLINE" if offline else str(error).partition("\n")[0][:200] or type(error).__name__
    return TraindeckError("hub.offline", str(error), name=name, host=host, reason=reason)
