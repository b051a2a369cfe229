"""Models of the Hugging Face Hub and its mirrors, in the cache and with the tokens of `huggingface_hub`.

    HF_HUB_CACHE/models--ORG--NAME/
        refs/main                commit of a branch or tag
        blobs/HASH               content, named by SHA-256 (LFS) or Git blob ID
        snapshots/COMMIT/NAME    links to blobs; the files themselves where Windows permits no links

A model that is complete in the cache is used without any request; a newer commit is fetched only if it is named. Files
are fetched over HTTP, not over Xet. API: https://huggingface.co/docs/hub/api.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from trainer_core import __version__
from trainer_core.base_model import weight_files
from trainer_core.base_model.download import (
    OFFICIAL_ENDPOINT,
    DownloadControl,
    DownloadPlan,
    RemoteFile,
    http_error,
    run_cancellable,
)
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter

DEFAULT_REVISION: Final = "main"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S: Final = 15.0
USER_AGENT: Final = f"traindeck/{__version__}"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_SMALL_FILES: Final = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|tokenizer\.model|vocab\.json"
    r"|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template\.(?:jinja|json)"
    r"|additional_chat_templates/tool_use\.jinja|model\.safetensors\.index\.json"
    r"|(?:LICEN[CS]E|NOTICE|USE_POLICY|README)(?:\.md|\.txt)?",
    re.IGNORECASE,
)
_SHARD: Final = re.compile(r"model-[\w.-]+\.safetensors", re.ASCII)


def find_cached(name: str, revision: str) -> tuple[Path, str] | None:
    """Folder and origin of a model that is complete in the cache, or None."""
    try:
        storage = _storage(name)
    except ModuleNotFoundError:  # in the window while set-up installs huggingface_hub, which knows the cache's location
        return None
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (storage / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    folder = storage / "snapshots" / commit
    return (folder, f"{name}@{commit}") if _COMMIT.fullmatch(commit) and is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether a folder has a configuration, a tokenizer and all weights."""
    try:
        weight_files.find_weights(folder)
    except (TraindeckError, OSError):
        return False
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in _TOKENIZERS)


def plan(name: str, revision: str, reporter: Reporter, endpoint: str = "", send_token: bool = False) -> DownloadPlan:
    """What a download would fetch. One request; no file.

    `endpoint`: a mirror; empty: HF_ENDPOINT, else https://huggingface.co. The user's token is sent to another endpoint
    only with `send_token`. Raises `hub.offline`, `hub.not_found`, `hub.no_revision`, `hub.gated`, `hub.refused`,
    `base_model.no_config`, `base_model.no_weights` or `base_model.pickled`.
    """
    endpoint = resolve_endpoint(endpoint)

    def work(control: DownloadControl) -> tuple[dict[str, Any], dict[str, str]]:
        headers = _headers(endpoint, send_token)  # may refresh a token over the network
        path = f"{endpoint}/api/models/{name}/revision/{quote(revision, safe='')}"
        return get_json(name, endpoint, path, {"blobs": "true"}, headers), headers

    info, headers = run_cancellable(work, reporter)
    commit = str(info.get("sha"))
    if not _COMMIT.fullmatch(commit):
        raise http_error(name, endpoint, ValueError("no commit in the answer"))
    found = [_remote_file(entry, f"{endpoint}/{name}/resolve/{commit}") for entry in info.get("siblings") or ()]
    storage = _storage(name)
    return DownloadPlan(
        name=name,
        origin=f"{name}@{commit}",
        endpoint=endpoint,
        folder=storage / "snapshots" / commit,
        files=select_files(name, [file for file in found if file is not None]),
        blobs=storage / "blobs",
        locks=storage.parent / ".locks" / storage.name,
        reference=None if revision == commit else storage / "refs" / revision,
        headers=headers,
    )


def select_files(name: str, found: list[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files that a model needs, configuration first and weights last."""
    by_name = {file.name: file for file in found}
    if "config.json" not in by_name:
        raise TraindeckError("base_model.no_config", path=name, file="config.json")
    small = [file for file in found if _SMALL_FILES.fullmatch(file.name)]
    if weight_files.SINGLE_FILE in by_name:
        weights = [by_name[weight_files.SINGLE_FILE]]
    elif weight_files.INDEX_FILE in by_name:
        weights = [file for file in found if _SHARD.fullmatch(file.name)]
    else:
        pickled = [file.name for file in found if file.name.endswith(weight_files.PICKLED_SUFFIXES)]
        if pickled:
            raise TraindeckError("base_model.pickled", path=name, file=pickled[0])
        raise TraindeckError("base_model.no_weights", path=name, file=weight_files.SINGLE_FILE)
    return (*sorted(small, key=lambda file: file.name != "config.json"), *weights)


def get_json(name: str, endpoint: str, url: str, params: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object at an address. Raises `hub.*`."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.utils import get_session, hf_raise_for_status

    try:
        response = get_session().get(url, params=params, headers=headers, timeout=_TIMEOUT_S)
        hf_raise_for_status(response)
        values = response.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, HfHubHTTPError, OfflineModeIsEnabled, ValueError) as error:
        raise http_error(name, endpoint, error) from error
    if not isinstance(values, dict):
        raise http_error(name, endpoint, ValueError("not a JSON object"))
    return values


def resolve_endpoint(endpoint: str) -> str:
    """`endpoint`, else that of the environment, without the final slash."""
    from huggingface_hub import constants

    return (endpoint or constants.ENDPOINT).rstrip("/")


def token_for(endpoint: str, send_token: bool) -> str | None:
    """The user's token; None: not logged in, or `endpoint` is a mirror and `send_token` is not set."""
    from huggingface_hub import get_token

    return get_token() if send_token or endpoint == OFFICIAL_ENDPOINT else None


def _headers(endpoint: str, send_token: bool) -> dict[str, str]:
    """Own headers: those of `huggingface_hub` include the token, and names of tools found in the environment."""
    headers = {"User-Agent": USER_AGENT}
    if token := token_for(endpoint, send_token):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _storage(name: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def _remote_file(entry: dict[str, Any], address: str) -> RemoteFile | None:
    """A file of the answer; None if it lacks what a download needs."""
    lfs = entry.get("lfs") or {}
    name, size, digest = entry.get("rfilename"), entry.get("size"), lfs.get("sha256") or entry.get("blobId")
    if not (isinstance(name, str) and isinstance(size, int) and re.fullmatch(r"[0-9a-f]{40,64}", str(digest))):
        return None
    return RemoteFile(name, size, f"{address}/{quote(name)}", str(digest), is_sha256="sha256" in lfs)
