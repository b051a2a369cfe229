"""Downloads files side by side. What was received before an interruption is kept: HTTP ranges continue it."""

import base64
import contextlib
import hashlib
import re
import ssl
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from launcher import places
from launcher.messages import SetupError, emit, log, message, mirror_advice
from launcher.places import WINDOWS
from launcher.processes import show_activity
from launcher.uv import trusted_hosts

CONNECTIONS = 4
CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30
ATTEMPTS = 8  # without a byte received in between; the waits add up to a minute
RATE_WINDOW_S = 5.0


class Package(NamedTuple):
    """A package and its file, which may be on this machine. `sha256` is empty and `size` 0 where the index has none."""

    name: str
    version: str
    file: str
    url: str
    size: int
    sha256: str

    def is_local(self) -> bool:
        return self.url.startswith("file:")

    def path(self) -> Path:
        """The file, after its download."""
        return local_path(self.url) if self.is_local() else places.DOWNLOADS / self.file

    def part(self) -> Path:
        """The file during its download."""
        return places.DOWNLOADS / (self.file + ".part")

    def received(self) -> int:
        """Bytes of the file that are there."""
        for path in (self.path(), self.part()):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0


class Downloads:
    """Downloads of packages, in threads that end with the context."""

    def __init__(self, packages: "list[Package]") -> None:
        places.DOWNLOADS.mkdir(parents=True, exist_ok=True)
        self._remote = [package for package in packages if not package.is_local()]
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._samples: list[tuple[float, int]] = []
        self._started = self._shown = time.monotonic()
        self._futures: dict[str, Future[None]] = {one.file: self._pool.submit(self._fetch, one) for one in self._remote}

    def __enter__(self) -> "Downloads":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for future in self._futures.values():
            future.cancel()
        self._pool.shutdown()

    def wait_for(self, packages: "list[Package]") -> "list[Path]":
        """Show the progress until these are there, and return their files. The first error of any file is raised."""
        emit("stage", text=message("launcher.activity.download"))
        names = [package.file for package in packages if package.file in self._futures]
        while True:
            pending = [name for name in names if not self._futures[name].done()]
            for future in self._futures.values():
                if future.done():
                    future.result()
            self._show_progress(pending[0] if pending else "")
            if not pending:
                return [package.path() for package in packages]
            with contextlib.suppress(Exception):
                self._futures[pending[0]].exception(timeout=0.25)

    def _show_progress(self, file: str) -> None:
        now, done = time.monotonic(), sum(package.received() for package in self._remote)
        total = sum(package.size for package in self._remote)
        self._samples = [sample for sample in self._samples if now - sample[0] <= RATE_WINDOW_S] + [(now, done)]
        since, before = self._samples[0]
        rate = max(done - before, 0) / max(now - since, 1.0)
        eta_s = round(max(total - done, 0) / rate) if rate else None
        emit("progress", done=done, total=total, rate=round(rate) or None, eta_s=eta_s, file=file)
        if file and now - self._shown >= 1:
            self._shown = now
            amount = message("launcher.amount", done=done / 1e6, total=total / 1e6, rate=rate / 1e6)
            show_activity(message("launcher.activity.download"), now - self._started, amount)

    def _fetch(self, package: Package) -> None:
        """Complete the file. Raises SetupError after repeated failures or for wrong content."""
        failures = 0
        while not package.path().exists():
            before = package.received()
            try:
                self._receive(package)
                verify(package)
            except (OSError, ValueError, HTTPException) as error:  # URLError and timeouts are OSErrors
                if getattr(error, "errno", None) == 28:
                    raise
                failures = 1 if package.received() > before else failures + 1
                log(f"{package.url}: {error!r}, attempt {failures}")
                code = getattr(error, "code", 0)  # of HTTP
                if code == 416:  # there is no more than what was received
                    package.part().unlink()
                if failures >= ATTEMPTS or code in (401, 403, 404, 407):
                    text = message("launcher.not_downloaded", name=package.file, error=error, mirror=mirror_advice())
                    raise SetupError(text) from error
                if self._stopped.wait(min(2.0 ** (failures - 1) / 2, 15)):
                    raise SetupError(message("launcher.interrupted")) from error

    def _receive(self, package: Package) -> None:
        """Append what is missing. Raises OSError if the connection breaks."""
        have = package.received()
        if package.size and have == package.size:
            return
        with open_url(package.url, {"Range": f"bytes={have}-"} if have else {}) as answer:
            expected = answer.headers.get("Content-Length")
            got = 0
            with package.part().open("ab" if answer.status == 206 else "wb") as out:  # 200: the whole file again
                while not self._stopped.is_set():
                    chunk = answer.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    out.write(chunk)
                    got += len(chunk)
        if self._stopped.is_set() or (expected and got < int(expected)):
            raise OSError(f"{got} of {expected} bytes received")


def verify(package: Package) -> None:
    """Check the hash of a file that was received, and give it its name. Raises SetupError."""
    part = package.part()
    with part.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if package.sha256 and digest != package.sha256:
        part.unlink()
        url = without_password(package.url)
        raise SetupError(message("launcher.wrong_download", name=package.file, url=url))
    part.replace(package.path())


def open_url(url: str, headers: "dict[str, str]") -> Any:
    """Open a URL with the proxies and certificates of the user. Returns a response."""
    parts = urllib.parse.urlsplit(url)
    if parts.username:
        word = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}").encode("utf-8")
        headers = dict(headers, Authorization="Basic " + base64.b64encode(word).decode("ascii"))
    request = urllib.request.Request(without_password(url), headers=dict(headers, **{"User-Agent": "traindeck"}))
    trusted, context = trusted_hosts(), ssl.create_default_context()
    if {parts.netloc.rpartition("@")[2], parts.hostname} & trusted:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)


def without_password(url: str) -> str:
    return re.sub(r"^(\w+://)[^/@]*@", r"\1", url)


def local_path(url: str) -> Path:
    """Path of a file:// URL."""
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    return Path(path.lstrip("\\") if WINDOWS and re.match(r"\\+\w:", path) else path)


def with_sizes(packages: "list[Package]") -> "list[Package]":
    """Fill in sizes that the index did not tell."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda one: one if one.size else one._replace(size=find_size(one)), packages))


def find_size(package: Package) -> int:
    """Size of a file; 0 if its server does not tell."""
    with contextlib.suppress(OSError, ValueError):
        if package.is_local():
            return package.path().stat().st_size
        with open_url(package.url, {"Range": "bytes=0-0"}) as answer:
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return int(total or answer.headers.get("Content-Length") or 0)
    return 0
