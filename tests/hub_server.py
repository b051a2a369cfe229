"""An HTTP server on loopback that speaks the parts of the Hugging Face Hub's API that downloads use.

GET /api/models/ORG/NAME/revision/REVISION?blobs=true   the commit and its files
GET, HEAD /ORG/NAME/resolve/COMMIT/FILE                 content; LFS files redirect to another origin, as on the Hub
GET /lfs/HASH                                           content of an LFS file; Range requests
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_CHUNK = 64 * 1024


@dataclass
class Hub:
    """State and faults of the server."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)  # files by name of the model
    tampered: dict[str, bytes] = field(default_factory=dict)  # content sent in place of a file's own, by its name
    gated: bool = False
    breaks_after: list[int] = field(default_factory=list)  # bytes of the next LFS answers, then the connection closes
    stalls_after: int | None = None  # bytes of an LFS answer, then silence
    supports_ranges: bool = True
    sends_error_codes: bool = True
    released: threading.Event = field(default_factory=threading.Event)  # ends the silence
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # method, path, headers
    endpoint: str = ""
    content_endpoint: str = ""  # of LFS files

    def paths(self, part: str = "") -> list[str]:
        return [path for _, path, _ in self.requests if part in path]


def git_blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _tree_entry(name: str, content: bytes) -> dict[str, object]:
    entry = {"type": "file", "path": name, "size": len(content), "oid": git_blob_id(content)}
    sha256 = hashlib.sha256(content).hexdigest()
    return entry | ({"lfs": {"oid": sha256, "size": len(content), "pointerSize": 134}} if is_lfs(name) else {})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._send_info(match[1], match[2])
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            self.send(200, json.dumps([_tree_entry(*file) for file in self.hub.models[match[1]].items()]).encode())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[3])
        elif match := re.fullmatch(r"/lfs/([^/]+/[^/]+)/(.+)", path):
            self.send_content(self.hub.tampered.get(match[2], self.hub.models[match[1]][match[2]]))
        else:
            self._fail(404, "EntryNotFound")

    def _send_info(self, model: str, revision: str) -> None:
        if model not in self.hub.models:
            return self._fail(404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._fail(404, "RevisionNotFound")
        siblings = []
        for name, content in self.hub.models[model].items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git_blob_id(content)}
            if is_lfs(name):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return self.send(200, json.dumps({"id": model, "sha": COMMIT, "siblings": siblings}).encode())

    def _resolve(self, model: str, name: str) -> None:
        content = self.hub.models[model].get(name)
        if self.hub.gated:
            return self._fail(403, "GatedRepo")
        if content is None:
            return self._fail(404, "EntryNotFound")
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{git_blob_id(content)}"'}
        if not is_lfs(name):
            return self.send(200, self.hub.tampered.get(name, content), headers)
        headers |= {
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Location": f"{self.hub.content_endpoint}/lfs/{model}/{name}",
        }
        return self.send(302, b"", headers)

    def send_content(self, content: bytes) -> None:
        start, status, headers = 0, 200, {}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and self.hub.supports_ranges:
            start, status = int(asked[1]), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        limit = self.hub.breaks_after.pop(0) if self.hub.breaks_after else None
        self.send(status, content[start:], headers, limit)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, limit: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        stall = self.hub.stalls_after if "/lfs/" in self.path else None
        sent = body[: len(body) if limit is None else limit][: len(body) if stall is None else stall]
        for start in range(0, len(sent), _CHUNK):
            self.wfile.write(sent[start : start + _CHUNK])
        self.wfile.flush()
        if stall is not None:
            self.hub.released.wait(60)
        if len(sent) < len(body):
            self.close_connection = True

    def _fail(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code} if self.hub.sends_error_codes else {})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes the connection is expected."""


@contextmanager
def serve(hub: Hub, handler: type[Handler] = Handler) -> Iterator[Hub]:
    """Run the server: one origin for the API, another for LFS content."""
    bound = type("BoundHandler", (handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), bound) for _ in range(2)]
    hub.endpoint, hub.content_endpoint = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()
