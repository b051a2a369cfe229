"""Where a base model comes from: a folder, a run or a checkpoint of Traindeck. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_core.base_model import weight_files
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.runs import checkpoint_dir, run_dir

CONFIG_FILE: Final = "config.json"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model on disk whose files are complete."""

    folder: Path  # as `save_pretrained` writes it
    config: dict[str, Any]  # content of config.json; untrusted
    origin: str  # absolute path; `resolve(origin)` finds the same model again
    weights: tuple[str, ...]  # names of the safetensors files in the folder


def resolve(text: str, reporter: Reporter) -> BaseModel:
    """The base model that `text` names: a model folder, a checkpoint, or a run (its newest valid checkpoint).

    Runs are found by folder or name. Headers of the weights are checked; a checkpoint's hashes too. No code of a model
    is ever run. Raises `base_model.*` and `checkpoint.damaged`, `run.no_checkpoint` or `model.unsupported`.
    """
    folder = Path(text).expanduser()
    if folder.is_dir():
        return _from_folder(folder.absolute(), reporter)
    if folder.is_file():
        raise TraindeckError("base_model.no_config", path=text, file=CONFIG_FILE)
    if text and run_dir.RunDir(run_dir.runs_root() / text).exists():
        return _from_folder(run_dir.runs_root() / text, reporter)
    raise TraindeckError("base_model.not_found", name=text)


def _from_folder(folder: Path, reporter: Reporter) -> BaseModel:
    if (folder / checkpoint_dir.MANIFEST).is_file():
        problem = checkpoint_dir.find_problem(folder)
        if problem:
            raise TraindeckError("checkpoint.damaged", path=str(folder), reason=problem)
    elif not (folder / CONFIG_FILE).is_file():
        if not run_dir.RunDir(folder).exists():
            raise TraindeckError("base_model.no_config", path=str(folder), file=CONFIG_FILE)
        folder = run_dir.find_checkpoint(str(folder), run_dir.runs_root(), reporter.warn)
    config = read_config(folder)
    return BaseModel(folder, config, str(folder), weight_files.find_weights(folder))


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
