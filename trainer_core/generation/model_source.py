"""Which model is loaded: a checkpoint, a model folder, a model of a hub, or the base model of a run. No torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trainer_core.base_model import preset_run, source, weight_files
from trainer_core.base_model.source import BaseModel
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.runs import checkpoint_dir, run_dir


class ModelSource(NamedTuple):
    """What is loaded; one of both at least.

    checkpoint: Its architecture, tokenizer and chat template are used. None: those of `base`.
    base: Its weights are used, with its adapters. None: those of `checkpoint`.
    """

    checkpoint: Path | None
    base: BaseModel | None

    @property
    def folder(self) -> Path:
        """The folder of the weights, or of the adapter that is added to them last."""
        if self.base is None:
            assert self.checkpoint is not None
            return self.checkpoint
        return self.base.adapters[-1] if self.base.adapters else self.base.folder

    @property
    def name(self) -> str:
        """Name of the run, of the folder, or on a hub."""
        if self.base is not None and not Path(self.base.origin).is_absolute():
            return self.base.origin.partition("@")[0]
        run = run_dir.RunDir(self.folder.parent.parent)
        return run.path.name if run.exists() and self.folder.parent == run.checkpoints else self.folder.name


def find_model(
    reference: str, reporter: Reporter, base: bool = False, *, endpoint: str = "", send_token: bool = False
) -> ModelSource:
    """The model that `reference` names.

    `reference`: a run, its name, a checkpoint, `latest`, or what `source.resolve` finds. With `base`, the model that
    this run began with. A hub's model is downloaded if necessary, with `endpoint` and `send_token` as in
    `source.resolve`.

    Raises as `run_dir.find_checkpoint` and `source.resolve`, and `base_model.none`.
    """
    if not _is_run(reference):
        found = source.resolve(reference, reporter, endpoint, send_token)
        if base:
            raise TraindeckError("base_model.none", path=reference)
        return ModelSource(None, found)
    checkpoint = run_dir.find_checkpoint(reference, run_dir.runs_root(), reporter.warn)
    return ModelSource(checkpoint, _base_of(checkpoint, reporter) if base else None)


def model_in(folder: Path, reporter: Reporter) -> ModelSource:
    """The checkpoint or model in a folder. Raises as `source.resolve`."""
    if (folder / checkpoint_dir.MANIFEST).is_file() or (folder / "state.json").is_file():
        return ModelSource(folder, None)
    return ModelSource(None, source.resolve(str(folder), reporter))


def _is_run(reference: str) -> bool:
    folder = Path(reference)
    if (
        reference in ("", "latest")
        or reference.startswith(preset_run.PREFIX)
        or (folder / checkpoint_dir.MANIFEST).is_file()
    ):
        return True
    return any(run_dir.RunDir(one).exists() for one in (folder, run_dir.runs_root() / reference))


def _base_of(checkpoint: Path, reporter: Reporter) -> BaseModel:
    """The base model of an adapter, whose identity is checked, or that of the run's configuration."""
    if (checkpoint / weight_files.ADAPTER_CONFIG_FILE).is_file():
        found = source.resolve(str(checkpoint), reporter)
        return replace(found, adapters=found.adapters[:-1])
    settings = run_dir.read_yaml(checkpoint.parent.parent / "config.yaml")
    name = settings.get("base_model")
    if not name:
        raise TraindeckError("base_model.none", path=str(checkpoint))
    return source.resolve(str(name), reporter, str(settings.get("hub_endpoint") or ""))
