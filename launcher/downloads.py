"""Downloads files side by side. What was received before an interruption is kept: HTTP ranges continue it."""

import base64
import contextlib
import hashlib
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from launcher.failures import SetupError
from launcher.messages import log, message
from launcher.places import WINDOWS

CONNECTIONS = 4
CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30
ATTEMPTS = 8  # without a byte received in between; the waits add up to a minute
RATE_WINDOW_S = 5.0
TRUSTED_HOSTS: "set[str]" = set()  # without a valid certificate


class RemoteFile(NamedTuple):
    """A file to download. `sha256` is empty where the index has none."""

    name: str
    url: str
    size: int
    sha256: str


class Downloads:
    """Downloads into a folder, in threads.

    `received`: bytes of the files that are there, for display. `rate()`: bytes per second, 0 at first.
    """

    def __init__(self, folder: Path, files: "list[RemoteFile]") -> None:
        self.folder, self.files = folder, files
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._samples: list[tuple[float, int]] = []
        self.received = sum(self._size_of(file) for file in files)
        self.current = ""
        self.futures: dict[str, Future[Path]] = {file.name: self._pool.submit(self._fetch, file) for file in files}

    def __enter__(self) -> "Downloads":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for future in self.futures.values():
            future.cancel()
        self._pool.shutdown()

    def rate(self) -> float:
        now = time.monotonic()
        with self._lock:
            self._samples = [sample for sample in self._samples if now - sample[0] <= RATE_WINDOW_S]
            first = min((sample[0] for sample in self._samples), default=now)
            total = sum(count for _, count in self._samples)
        return total / max(now - first, 1.0)

    def _part(self, file: RemoteFile) -> Path:
        return self.folder / (file.name + ".part")

    def _size_of(self, file: RemoteFile) -> int:
        for path in (self.folder / file.name, self._part(file)):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def _fetch(self, file: RemoteFile) -> Path:
        """Return the complete file. Raises SetupError after repeated failures or for wrong content."""
        target, part = self.folder / file.name, self._part(file)
        if target.exists():
            return target
        failures = 0
        while True:
            before = self._size_of(file)
            try:
                self._receive(file, part)
                break
            except (OSError, ValueError) as error:  # URLError, timeouts and broken connections are OSErrors
                if getattr(error, "errno", None) == 28:
                    raise
                failures = 1 if self._size_of(file) > before else failures + 1
                log(f"{file.url}: {error!r}, attempt {failures}")
                refused = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 407)
                if failures >= ATTEMPTS or refused:
                    raise SetupError(message("launcher.not_downloaded", name=file.name, error=error)) from error
                if self._stopped.wait(min(2.0 ** (failures - 1) / 2, 15)):
                    raise SetupError(message("launcher.interrupted")) from error
        self._verify(file, part)
        part.replace(target)
        return target

    def _receive(self, file: RemoteFile, part: Path) -> None:
        """Append what is missing. Raises OSError if the connection breaks."""
        have = part.stat().st_size if part.exists() else 0
        if file.size and have == file.size:
            return
        with open_url(file.url, {"Range": f"bytes={have}-"} if have else {}) as answer:
            continued = have and answer.status == 206
            if have and not continued:
                self._count(-have)  # the server sends the whole file again
            expected = answer.headers.get("Content-Length")
            self.current = file.name
            with part.open("ab" if continued else "wb") as out:
                got = 0
                while not self._stopped.is_set():
                    chunk = answer.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    out.write(chunk)
                    got += len(chunk)
                    self._count(len(chunk))
        if self._stopped.is_set() or (expected and got < int(expected)):
            raise OSError(f"{got} of {expected} bytes received")

    def _count(self, count: int) -> None:
        with self._lock:
            self.received += count
            self._samples.append((time.monotonic(), max(count, 0)))

    def _verify(self, file: RemoteFile, part: Path) -> None:
        digest = hashlib.sha256()
        with part.open("rb") as content:
            for chunk in iter(lambda: content.read(1 << 20), b""):
                digest.update(chunk)
        if file.sha256 and digest.hexdigest() != file.sha256:
            self._count(-part.stat().st_size)
            part.unlink()
            raise SetupError(message("launcher.wrong_download", name=file.name, url=without_password(file.url)))


def use_settings(variables: "dict[str, str]", trusted_hosts: "list[str]") -> None:
    """Use the proxy, certificates and trusted hosts that pip is configured for."""
    os.environ.update(variables)
    TRUSTED_HOSTS.update(trusted_hosts)


def open_url(url: str, headers: "dict[str, str]") -> Any:
    """Open a URL with the proxies and certificates of the user. Returns a response."""
    parts = urllib.parse.urlsplit(url)
    if parts.username:
        word = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}").encode("utf-8")
        headers = dict(headers, Authorization="Basic " + base64.b64encode(word).decode("ascii"))
    request = urllib.request.Request(without_password(url), headers=dict(headers, **{"User-Agent": "traindeck"}))
    context = ssl.create_default_context()
    if {parts.netloc.rpartition("@")[2], parts.hostname} & TRUSTED_HOSTS:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)


def without_password(url: str) -> str:
    return re.sub(r"^(\w+://)[^/@]*@", r"\1", url)


def remote_size(url: str) -> int:
    """Size of a file that its index does not tell; 0 if unknown."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return local_path(url).stat().st_size
    with contextlib.suppress(OSError, ValueError), open_url(url, {"Range": "bytes=0-0"}) as answer:
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        return int(total or answer.headers.get("Content-Length") or 0)
    return 0


def local_path(url: str) -> Path:
    """Path of a file:// URL."""
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    return Path(path.lstrip("\\") if WINDOWS and re.match(r"\\+\w:", path) else path)


def measure_rate(url: str, seconds: float = 4.0) -> float:
    """Bytes per second from the start of a file; 0 if it does not answer."""
    started, got = time.monotonic(), 0
    with contextlib.suppress(OSError, ValueError), open_url(url, {}) as answer:
        while time.monotonic() - started < seconds:
            chunk = answer.read(1 << 16)
            if not chunk:
                break
            got += len(chunk)
    return got / max(time.monotonic() - started, 0.001)
