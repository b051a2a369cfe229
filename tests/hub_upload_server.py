"""A hub on loopback that accepts uploads: the requests that `huggingface_hub` makes for one commit over HTTP.

GET  /api/whoami-v2                           the account of the token
GET  /api/models/ORG/NAME                     whether a repository is private
POST /api/repos/create
POST /api/validate-yaml                       metadata of README.md
POST /api/models/ORG/NAME/preupload/main      which files are sent as LFS
POST /ORG/NAME.git/info/lfs/objects/batch     where LFS content is sent to, also in parts
PUT  /upload/HASH/PART                        LFS content, on another origin and without a token
POST /complete/HASH                           the end of LFS content in parts
POST /api/models/ORG/NAME/commit/main         JSON lines: header, small files in base64, LFS files by hash
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.hub_server import COMMIT, Handler, Hub, is_lfs, serve

PART_BYTES = 100_000


@dataclass
class UploadHub(Hub):
    """State and faults: `models` has what was committed."""

    accounts: dict[str, str] = field(default_factory=lambda: {"hf_secret": "wang"})  # by token
    public: dict[str, bool] = field(default_factory=dict)  # by repository
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)  # of LFS content, by its hash
    refused: dict[str, int] = field(default_factory=dict)  # status for paths with this part
    holds_content: bool = False  # do not answer requests that send LFS content before `released` is set

    @property
    def writes(self) -> list[str]:
        """Methods and paths of the requests that change something."""
        return [f"{method} {path}" for method, path, _ in self.requests if method != "GET"]


class _Uploads(Handler):
    hub: UploadHub

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        path, headers = self.path.partition("?")[0], {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append((self.command, path, headers))
        body = self.rfile.read(int(headers.get("content-length", 0)))
        account = self.hub.accounts.get(headers.get("authorization", "").removeprefix("Bearer "))
        refused = next((status for part, status in self.hub.refused.items() if part in path), None)
        if refused is not None:
            self._reply({"error": "refused"}, refused)
        elif self.command == "PUT":
            self.hub.released.wait(60 * self.hub.holds_content)
            digest, part = re.fullmatch(r"/upload/(\w+)/(\d+)", path).groups()  # type: ignore[union-attr]
            self.hub.parts.setdefault(digest, {})[int(part)] = body
            self.send(200, b"", {"ETag": f'"{part}"'})
        elif account is None and not path.startswith("/complete/"):
            self._reply({"error": "Invalid credentials"}, 401)
        elif path == "/api/whoami-v2":
            self._reply({"type": "user", "name": account})
        else:
            self._answer_repository(path, body)

    def _answer_repository(self, path: str, body: bytes) -> None:
        given = json.loads(body) if body and not path.endswith("/commit/main") else {}
        match path.split("/")[1:]:
            case ["api", "validate-yaml"]:
                has_metadata = given["content"].startswith("---\n")
                self._reply({"errors": [], "warnings": []} if has_metadata else {}, 200 if has_metadata else 400)
            case ["api", "repos", "create"]:
                name = f"{given['organization']}/{given['name']}"
                self.hub.models[name], self.hub.public[name] = {}, given["visibility"] == "public"
                self._reply({"url": f"{self.hub.endpoint}/{name}"})
            case ["api", "models", organization, name]:
                repository = f"{organization}/{name}"
                exists = repository in self.hub.models
                found = {"id": repository, "private": not self.hub.public.get(repository), "siblings": []}
                self._reply(found if exists else {"error": "Repository not found"}, 200 if exists else 404)
            case ["api", "models", _, _, "preupload", "main"]:
                modes = [(file["path"], "lfs" if _is_large(file["path"]) else "regular") for file in given["files"]]
                self._reply(
                    {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes]}
                )
            case [_, _, "info", "lfs", "objects", "batch"]:
                self._reply({"transfer": "multipart", "objects": [self._lfs_action(item) for item in given["objects"]]})
            case ["complete", digest]:
                assert [part["partNumber"] for part in given["parts"]] == sorted(self.hub.parts[digest])
                self._reply({})
            case ["api", "models", organization, name, "commit", "main"]:
                self._commit(f"{organization}/{name}", [json.loads(line) for line in body.splitlines()])
            case _:
                self._reply({"error": path}, 404)

    def _lfs_action(self, item: dict[str, Any]) -> dict[str, Any]:
        digest, size = item["oid"], item["size"]
        address = f"{self.hub.content_endpoint}/upload/{digest}"
        upload: dict[str, Any] = {"href": f"{address}/1"}
        if size > PART_BYTES:
            urls = {str(part): f"{address}/{part}" for part in range(1, -(-size // PART_BYTES) + 1)}
            upload = {
                "href": f"{self.hub.content_endpoint}/complete/{digest}",
                "header": {"chunk_size": str(PART_BYTES), **urls},
            }
        return {"oid": digest, "size": size, "actions": {"upload": upload}}

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.hub.models[repository][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                parts = self.hub.parts[value["oid"]]
                content = b"".join(parts[number] for number in sorted(parts))
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                self.hub.models[repository][value["path"]] = content
        self._reply({"commitUrl": f"{self.hub.endpoint}/{repository}/commit/{COMMIT}", "commitOid": COMMIT})

    def _reply(self, values: dict[str, Any], status: int = 200) -> None:
        self.send(status, json.dumps(values).encode(), {"Content-Type": "application/json"})


def _is_large(name: str) -> bool:
    return is_lfs(name) or name.endswith(".gguf")


@contextmanager
def serve_uploads() -> Iterator[UploadHub]:
    hub = UploadHub()
    with serve(hub, _Uploads):
        yield hub
