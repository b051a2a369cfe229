"""A package index on loopback (PEP 503) over a folder of wheels, whose connections can be slow or break."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 1 << 16


class PackageIndex(ThreadingHTTPServer):
    """`cut_after`: bytes of a file after which its next connections break, each once more than the one before.
    `sent`: bytes of each file. `proxied`: host of each request to this as a proxy. `rate`: bytes per second of a
    connection. `offline`: every connection breaks."""

    daemon_threads = True

    def __init__(self, wheels: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels = wheels
        self.cuts: dict[str, int] = {}
        self.cut_after = 0
        self.rate = 0.0
        self.offline = False
        self.wrong_hash = ""
        self.sent: dict[str, int] = {}
        self.proxied: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple"

    def variables(self) -> dict[str, str]:
        """Settings of pip that make this the only source."""
        return {"PIP_INDEX_URL": self.url, "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "NO_PROXY": "127.0.0.1"}


class Handler(BaseHTTPRequestHandler):
    server: PackageIndex
    protocol_version = "HTTP/1.1"
    page_lock: ClassVar[threading.Lock] = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.server.offline:
            self.close_connection = True
            return
        url = urlsplit(self.path)  # of a proxy, the whole URL
        if url.netloc:
            self.server.proxied.append(url.netloc)
        path = unquote(url.path)
        if match := re.fullmatch(r"/simple/([^/]+)/", path):
            self.send_page(match.group(1))
        elif (file := self.server.wheels / path.removeprefix("/files/")).is_file() and path.startswith("/files/"):
            self.send_file(file)
        else:
            self.send_error(404)

    def send_page(self, name: str) -> None:
        found = [file for file in self.server.wheels.glob("*.whl") if normalize(file.name.split("-")[0]) == name]
        if not found:
            self.send_error(404)
            return
        links = []
        for file in sorted(found):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            digest = "0" * 64 if name == self.server.wrong_hash else digest
            links.append(f'<a href="/files/{file.name.replace("+", "%2B")}#sha256={digest}">{file.name}</a>')
        page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(page)

    def send_file(self, file: Path) -> None:
        content = file.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(match.group(1)) if match else 0
        last = min(int(match.group(2)) if match and match.group(2) else len(content), len(content) - 1)
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self.send_bytes(file.name, content[first : last + 1])

    def send_bytes(self, name: str, content: bytes) -> None:
        cut = self.server.cut_after if self.server.cuts.get(name, 0) > 0 and len(content) > CHUNK_BYTES else 0
        for start in range(0, len(content), CHUNK_BYTES):
            chunk = content[start : start + CHUNK_BYTES]
            if self.server.offline or (cut and start >= cut):
                self.server.cuts[name] = self.server.cuts.get(name, 0) - 1
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(chunk)
            self.server.sent[name] = self.server.sent.get(name, 0) + len(chunk)
            if self.server.rate:
                time.sleep(len(chunk) / self.server.rate)


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def serve_packages(wheels: Path) -> Iterator[PackageIndex]:
    index = PackageIndex(wheels)
    thread = threading.Thread(target=index.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.shutdown()
        index.server_close()
