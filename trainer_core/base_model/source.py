"""Where a base model comes from: a folder, a run or checkpoint of Traindeck, or a hub. No torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainer_core.base_model import download, hub, modelscope, weight_files
from trainer_core.base_model.weight_files import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.runs import checkpoint_dir, run_dir

CONFIG_FILE: Final = "config.json"
_STATE_FILE: Final = "state.json"  # of a checkpoint; records its base model
_NOT_FOUND: Final = ("base_model.not_found", "base_model.no_config", "hub.offline", "hub.not_found")
_HUB_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+(?:/[\w.-]+)*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model on disk whose files are complete."""

    folder: Path  # as `save_pretrained` writes it
    config: dict[str, Any]  # content of config.json; untrusted
    origin: str  # absolute path, or `ORG/NAME@COMMIT`; `resolve(origin)` finds the same model again
    weights: tuple[str, ...]  # names of the safetensors files in the folder
    adapters: tuple[Path, ...] = ()  # folders of LoRA adapters to add to the weights, in this order

    def identity(self) -> dict[str, str]:
        """Hash of each weight file, to recognize the model again: see `weight_files.identity`."""
        hashes = weight_files.identity(self.folder, self.weights)
        for number, folder in enumerate(self.adapters, 1):
            hashes[f"{ADAPTER_FILE} {number}"] = weight_files.identity(folder, [ADAPTER_FILE])[ADAPTER_FILE]
        return hashes


def resolve(text: str, reporter: Reporter, endpoint: str = "", send_token: bool = False) -> BaseModel:
    """The base model that `text` names; downloads it if necessary.

    `text`: a model folder, a checkpoint, a run by folder or name (its newest valid checkpoint), the folder of a LoRA
    adapter, whose base model is resolved in turn, or `ORG/NAME[@REVISION]` of the Hugging Face Hub or, after
    `modelscope:`, of ModelScope. What exists on disk wins. `endpoint`: a mirror of the Hub. The user's token is sent to
    a mirror only with `send_token`. Headers of the weights are checked, and the hashes of a checkpoint and of what is
    downloaded. No code of a model is ever run.

    Raises `base_model.*`, `hub.*`, `disk.*`, `checkpoint.*`, `run.no_checkpoint` or `model.unsupported`, and
    `StopRequested`.
    """
    found = find_local(text, reporter.warn)
    if found is None:
        plan = _HubName.parse(text).plan(reporter, endpoint, send_token)
        download.download(plan, reporter, lambda file: _check_file(plan.folder, file))
        found = plan.folder, plan.origin
    folder, origin = found
    if origin == str(folder) and (folder / ADAPTER_CONFIG_FILE).is_file():
        return _with_adapter(folder, lambda base: resolve(base, reporter, endpoint, send_token))
    return BaseModel(folder, read_config(folder), origin, weight_files.find_weights(folder))


def find_local(text: str, warn: Callable[..., None]) -> tuple[Path, str] | None:
    """Folder and origin of the model or adapter that `text` names; None: a model of a hub that is not in the cache.

    `warn` as for `run_dir.find_checkpoint`. Raises as `resolve` does, but for downloads, `config.json` and weights.
    """
    folder = find_folder(text)
    if folder is None:
        return _HubName.parse(text).find_cached()
    folder = _model_folder(folder, warn)
    return folder, str(folder)


def plan_download(
    text: str, reporter: Reporter, endpoint: str = "", send_token: bool = False
) -> download.DownloadPlan | None:
    """What `resolve` would download, with sizes and free space; None if nothing. Raises as `resolve` does."""
    if find_folder(text) is not None:
        return None
    name = _HubName.parse(text)
    return None if name.find_cached() else name.plan(reporter, endpoint, send_token)


def find_folder(text: str) -> Path | None:
    """The folder or run on disk that `text` names. Raises `base_model.no_config` for a file."""
    with contextlib.suppress(RuntimeError):  # `~` of a user who does not exist
        text = str(Path(text).expanduser()) if text.startswith("~") else text
    folder = Path(text)
    if folder.is_dir():
        return folder.absolute()
    if folder.is_file():
        raise TraindeckError("base_model.no_config", path=text, file=CONFIG_FILE)
    named = run_dir.RunDir(run_dir.runs_root() / text)
    return named.path if text and named.exists() else None


@dataclass(frozen=True, slots=True)
class _HubName:
    """A model of a hub."""

    name: str
    revision: str
    on_modelscope: bool

    @classmethod
    def parse(cls, text: str) -> _HubName:
        on_modelscope = text.startswith(modelscope.PREFIX)
        match = _HUB_NAME.fullmatch(text.removeprefix(modelscope.PREFIX))
        if match is None or ".." in text:
            raise TraindeckError("base_model.not_found", name=text)
        default = modelscope.DEFAULT_REVISION if on_modelscope else hub.DEFAULT_REVISION
        return cls(match[1], match[2] or default, on_modelscope)

    def find_cached(self) -> tuple[Path, str] | None:
        if self.on_modelscope:
            return modelscope.find_cached(self.name, self.revision)
        return hub.find_cached(self.name, self.revision)

    def plan(self, reporter: Reporter, endpoint: str, send_token: bool) -> download.DownloadPlan:
        if self.on_modelscope:
            return modelscope.plan(self.name, self.revision, reporter)
        return hub.plan(self.name, self.revision, reporter, endpoint, send_token)


def _check_file(folder: Path, name: str) -> None:
    """Refuse a model before its weights are downloaded."""
    if name == CONFIG_FILE:
        read_config(folder)


def _model_folder(folder: Path, warn: Callable[..., None]) -> Path:
    """The folder itself if it holds a model or an adapter, or the newest valid checkpoint of a run."""
    if (folder / checkpoint_dir.MANIFEST).is_file():
        problem = checkpoint_dir.find_problem_cached(folder)  # a run resolves its base model twice
        if problem:
            raise TraindeckError("checkpoint.damaged", path=str(folder), reason=problem)
    elif not any((folder / name).is_file() for name in (CONFIG_FILE, ADAPTER_CONFIG_FILE)):
        if not run_dir.RunDir(folder).exists():
            raise TraindeckError("base_model.no_config", path=str(folder), file=CONFIG_FILE)
        return run_dir.find_checkpoint(str(folder), run_dir.runs_root(), warn)
    return folder


def _with_adapter(folder: Path, resolve_base: Callable[[str], BaseModel]) -> BaseModel:
    """The base model of an adapter, with the adapter.

    Raises `checkpoint.no_base`, `checkpoint.other_base` if a checkpoint's base model has changed, and errors of both.
    """
    weight_files.find_weights(folder, ADAPTER_FILE)
    name = str(weight_files.read_json(folder / ADAPTER_CONFIG_FILE).get("base_model_name_or_path"))
    try:
        base = resolve_base(name)
    except RecursionError as error:
        raise TraindeckError("checkpoint.bad_adapter", path=str(folder), reason="it is its own base model") from error
    except TraindeckError as error:
        if error.code not in _NOT_FOUND:
            raise
        raise TraindeckError("checkpoint.no_base", error.code, path=str(folder), base=name) from error
    state = folder / _STATE_FILE
    recorded = weight_files.read_json(state).get("base") if state.is_file() else None
    if isinstance(recorded, dict) and recorded.get("identity") != base.identity():
        raise TraindeckError("checkpoint.other_base", path=str(folder), base=base.origin)
    return replace(base, origin=str(folder), adapters=(*base.adapters, folder))


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises `base_model.remote_code` for a model that transformers has no code for."""
    config = weight_files.read_json(folder / CONFIG_FILE)
    kind = config.get("model_type")
    if config.get("auto_map") and not _has_code_in_transformers(kind):
        raise TraindeckError("base_model.remote_code", path=str(folder), model_type=str(kind)[:60])
    if not isinstance(kind, str):
        raise TraindeckError("model.unsupported", path=str(folder), name="model_type", value=f"{kind!r:.60}")
    return config


def _has_code_in_transformers(model_type: object) -> bool:
    try:
        from transformers import CONFIG_MAPPING  # takes 2 s
    except ImportError:
        return False
    return model_type in CONFIG_MAPPING
