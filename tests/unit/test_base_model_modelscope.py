"""Downloads from ModelScope: a server on loopback answers as its API is used by `modelscope_hub` 0.5."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from huggingface_hub import constants

from tests.hub_server import Handler, Hub, serve
from tests.unit.test_base_model_hub import MODEL, WANTED, model_files, names_below
from trainer_core.base_model import download
from trainer_core.base_model.source import plan_download, resolve
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter

NAME = f"modelscope:{MODEL}"


class ModelScopeHandler(Handler):
    """GET /api/v1/models/ORG/NAME/repo/files?Revision= and /api/v1/models/ORG/NAME/repo?Revision=&FilePath="""

    def answer(self) -> None:
        address, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        self.hub.requests.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        match = re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?", address.path)
        if match is None or match[1] not in self.hub.models or query["Revision"] != ["master"]:
            return self.send(404, json.dumps({"Code": 10010205001, "Message": "not found", "Success": False}).encode())
        found = self.hub.models[match[1]]
        if match[2] is None:
            name = query["FilePath"][0]
            return self.send_content(self.hub.tampered.get(name, found[name]))
        files = [{"Path": "additional_chat_templates", "Type": "tree", "Size": 0, "Sha256": ""}]
        for name, content in found.items():
            sha256 = hashlib.sha256(content).hexdigest()
            files.append({"Path": name, "Type": "blob", "Size": len(content), "Sha256": sha256})
        return self.send(200, json.dumps({"Code": 200, "Data": {"Files": files}, "Success": True}).encode())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "缓存 ms"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(download, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(cache))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(Hub({MODEL: model_files()}), ModelScopeHandler) as running:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", running.endpoint)
        yield running


def refusal(text: str) -> TraindeckError:
    with pytest.raises(TraindeckError) as caught:
        resolve(text, NullReporter(), send_token=True)
    return caught.value


def test_a_model_is_downloaded_into_the_cache_of_modelscope_without_a_token(server: Hub, cache: Path) -> None:
    base = resolve(NAME, NullReporter(), send_token=True)
    assert base.folder == cache / "models" / "Qwen--Qwen3-0.6B" / "snapshots" / "master"
    assert names_below(base.folder) == WANTED
    assert all((base.folder / name).read_bytes() == model_files()[name] for name in WANTED)
    assert base.origin == f"{NAME}@master"
    assert "hf_secret" not in json.dumps(server.requests)
    server.requests.clear()
    assert resolve(base.origin, NullReporter()) == base
    assert not server.requests


def test_a_broken_connection_is_resumed(server: Hub) -> None:
    weights = "model-00001-of-00002.safetensors"
    small = len(WANTED) - 2
    server.breaks_after = [*[10**9] * small, 300_000]
    base = resolve(NAME, NullReporter())
    assert (base.folder / weights).read_bytes() == model_files()[weights]
    assert [headers["range"] for _, _, headers in server.requests if "range" in headers] == ["bytes=300000-"]


def test_sizes_are_known_and_a_tampered_file_is_deleted(server: Hub, cache: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    server.tampered[name] = model_files()[name][:-1] + b"!"
    error = refusal(NAME)
    assert (error.code, error.params["file"]) == ("hub.file_changed", name)
    plan = plan_download(NAME, NullReporter())
    assert plan is not None
    assert plan.bytes_to_fetch == len(model_files()[name])
    assert not list(cache.rglob("*.incomplete"))


def test_a_file_that_the_owner_replaced_meanwhile_is_fetched_again(server: Hub) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    server.tampered[second] = b"!"
    refusal(NAME)
    server.tampered.clear()
    server.models[MODEL][first] = model_files()[second].replace(b"w1", b"w0")
    base = resolve(NAME, NullReporter())
    assert (base.folder / first).read_bytes() == server.models[MODEL][first]


def test_unknown_models_and_revisions_are_reported(server: Hub) -> None:
    assert refusal("modelscope:Qwen/Qwen9").code == "hub.not_found"
    assert refusal(f"{NAME}@v9").code == "hub.not_found"
    assert refusal("modelscope:Qwen").code == "base_model.not_found"


def test_what_an_older_version_of_modelscope_downloaded_is_used(server: Hub, cache: Path) -> None:
    folder = cache / "hub" / "models" / "Qwen" / "Qwen3-0___6B"
    folder.mkdir(parents=True)
    for name in WANTED - {"additional_chat_templates/tool_use.jinja"}:
        (folder / name).write_bytes(model_files()[name])
    assert resolve(NAME, NullReporter()).folder == folder
    assert not server.requests
