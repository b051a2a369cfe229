"""Models of ModelScope, in the cache of its own package. Public models only: no token is read or sent.

    MODELSCOPE_CACHE/models/ORG--NAME/snapshots/REVISION/NAME    ~/.cache/modelscope by default

API and cache are those of the package `modelscope_hub` 0.5, read from its source. Tested with a server written from
that source, not with ModelScope itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

from trainer_core.base_model.download import DownloadControl, DownloadPlan, RemoteFile, run_cancellable
from trainer_core.base_model.hub import USER_AGENT, get_json, is_complete, select_files
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter

PREFIX: Final = "modelscope:"
DEFAULT_REVISION: Final = "master"
_HEADERS: Final = {"User-Agent": USER_AGENT}


def find_cached(name: str, revision: str) -> tuple[Path, str] | None:
    """Folder and origin of a model that is complete in the cache, or None."""
    owner, _, short = name.partition("/")
    folders = [_folder(name, revision)]
    if revision == DEFAULT_REVISION:  # where older versions of the package stored it
        folders += [_cache() / part / "models" / owner / short.replace(".", "___") for part in ("hub", "")]
    found = next((folder for folder in folders if is_complete(folder)), None)
    return None if found is None else (found, _origin(name, revision))


def plan(name: str, revision: str, reporter: Reporter) -> DownloadPlan:
    """What a download would fetch. One request; no file. Endpoint: MODELSCOPE_ENDPOINT, else https://modelscope.cn.

    Raises `hub.offline`, `hub.not_found`, `hub.refused`, `base_model.no_config`, `base_model.no_weights` or
    `base_model.pickled`.
    """
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").rstrip("/") or "https://modelscope.cn"
    endpoint = endpoint if "://" in endpoint else f"https://{endpoint}"
    address = f"{endpoint}/api/v1/models/{name}/repo"

    def work(control: DownloadControl) -> dict[str, Any]:
        parameters = {"Revision": revision, "Recursive": "True"}
        return get_json(name, endpoint, f"{address}/files", parameters, _HEADERS)

    answer = run_cancellable(work, reporter)
    data = answer.get("Data")
    entries = data.get("Files") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise TraindeckError("hub.refused", str(answer)[:500], name=name, host=endpoint, status=str(answer.get("Code")))
    found = [_remote_file(entry, f"{address}?Revision={quote_plus(revision)}") for entry in entries]
    return DownloadPlan(
        name=name,
        origin=_origin(name, revision),
        endpoint=endpoint,
        folder=_folder(name, revision),
        files=select_files(name, [file for file in found if file is not None]),
        headers=_HEADERS,
    )


def _origin(name: str, revision: str) -> str:
    return f"{PREFIX}{name}@{revision}"


def _cache() -> Path:
    return Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()


def _folder(name: str, revision: str) -> Path:
    return _cache() / "models" / name.replace("/", "--") / "snapshots" / revision


def _remote_file(entry: dict[str, Any], address: str) -> RemoteFile | None:
    """A file of the answer; None for a folder."""
    name, size = entry.get("Path"), entry.get("Size")
    if entry.get("Type") == "tree" or not isinstance(name, str) or not isinstance(size, int):
        return None
    return RemoteFile(name, size, f"{address}&FilePath={quote_plus(name)}", str(entry.get("Sha256") or "").lower())
