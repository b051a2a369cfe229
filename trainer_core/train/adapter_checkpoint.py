"""Loads the model of a checkpoint, merges its adapter, and compares its base model with that of a run.

The `state.json` of an adapter names its base model: `origin`, which `base_model.source.resolve` finds, and `identity`,
hashes by file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from trainer_core.base_model import source, weight_files
from trainer_core.base_model.source import BaseModel
from trainer_core.base_model.weight_files import TensorEntry
from trainer_core.base_model.weights import DTYPES, is_finite, load_weights, read_tensors, require_weights
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters, quantization
from trainer_core.models.build import build_model
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import TransformersConfig
from trainer_core.models.transformers_model import TransformersModel
from trainer_core.progress import NullReporter, Reporter
from trainer_core.system import files
from trainer_core.train import checkpoint
from trainer_core.train.checkpoint import read_base, read_shape
from trainer_core.train.checkpoint_writer import write_tensors

_Adapter: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]  # weights and configuration


def base_of(base: BaseModel) -> dict[str, Any]:
    """The record of a base model in `TrainState.base` and `state.json`."""
    return {"origin": base.origin, "identity": base.identity()}


def require_same_base(folder: Path, base: Mapping[str, Any]) -> None:
    """Raises `checkpoint.other_base` if the adapter of a checkpoint has another base model than `base`, a record."""
    if adapters.is_adapter(folder) and read_base(folder).get("identity") != base.get("identity"):
        raise TraindeckError("checkpoint.other_base", path=str(folder), base=str(base.get("origin", "-")))


def load_base(base: BaseModel, model: LanguageModel, reporter: Reporter, new_tokens: Iterable[int] = ()) -> None:
    """Load the weights of a base model with its adapters merged. Raises as `load_weights`, `checkpoint.bad_adapter`."""
    if quantization.is_quantized(model):
        _load_quantized(base, model, reporter, new_tokens)
        return
    load_weights(base, model, reporter, new_tokens)
    for folder in base.adapters:
        adapters.load_adapter(folder, model)
        adapters.merge(model)


def _load_quantized(base: BaseModel, model: LanguageModel, reporter: Reporter, new_tokens: Iterable[int]) -> None:
    """Merge adapters into each weight before it is quantized."""
    merged, device = _read_adapters(base), model.head.weight.device

    def store(name: str, tensor: torch.Tensor, weight: torch.Tensor) -> None:
        for adapter, config in merged:
            tensor = adapters.merged_weight(name, tensor, adapter, config)
        quantization.store_weight(tensor, weight, device)

    load_weights(base, model, reporter, new_tokens, store)
    for adapter, _ in merged:  # trained embeddings, which `load_weights` copies without `store`
        for name, weight in model.named_parameters():
            if (trained := adapter.get(adapters.PREFIX + name)) is not None:
                quantization.store_weight(trained, weight, device)


def _read_adapters(base: BaseModel) -> list[_Adapter]:
    """Weights and configuration of each adapter of a base model."""
    return [(adapters.read_adapter(folder), adapters.read_adapter_config(folder)) for folder in base.adapters]


def weights_dtype(folder: Path) -> torch.dtype:
    """The dtype of the weights of a model folder or checkpoint; of an adapter, that of its base model."""
    if adapters.is_adapter(folder):
        folder = source.resolve(str(folder), NullReporter()).folder
    file = folder / weight_files.find_weights(folder)[0]
    with weight_files.damage_errors(file):
        entries = weight_files.read_header(file).values()
    return next((DTYPES[entry.dtype] for entry in entries if entry.dtype in DTYPES), torch.float32)


def load_merged(folder: Path, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The model of a checkpoint in `dtype`, an adapter added to its base model.

    Raises `checkpoint.damaged` or `checkpoint.mismatch`; for an adapter as `source.resolve` and `load_base`.
    """
    config = read_shape(folder)
    if not adapters.is_adapter(folder):
        checkpoint.require_weights(folder, config)
        model = build_model(torch.device("cpu"), config, initialize=False, dtype=dtype)
        checkpoint.load_weights(folder, model)
        return model
    reporter = NullReporter()
    base = source.resolve(str(folder), reporter)
    require_weights(base, build_model(torch.device("meta"), config, initialize=False))  # before memory is allocated
    model = build_model(torch.device("cpu"), config, initialize=False, dtype=dtype)
    load_base(base, model, reporter)
    return model


class MergedWeights:
    """Weights of a checkpoint that our decoder computes, with its adapters merged, read one tensor at a time.

    Attributes:
        shapes: Empty tensors on the device `meta` by name, in the dtypes of the base model or checkpoint.

    Raises as `source.resolve` and `adapters.read_adapter`.
    """

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        base = source.resolve(str(folder), reporter)
        self._adapters, self._reporter = _read_adapters(base), reporter
        self._entries: dict[str, TensorEntry] = {}
        for name in base.weights:
            with weight_files.damage_errors(base.folder / name):
                self._entries.update(weight_files.read_header(base.folder / name))
        entries = self._entries.items()
        self.shapes = {
            name: _merged_shape(name, entry, self._adapters) for name, entry in entries if entry.dtype in DTYPES
        }

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A weight, rounded to `dtype` once, after merging. Raises `base_model.damaged` or `export.too_large`."""
        entry = self._entries[name]
        with weight_files.damage_errors(entry.path):
            ((_, weight),) = read_tensors(entry.path, {name: entry}, self._reporter)
        weight = weight.to(torch.promote_types(weight.dtype, dtype))
        for adapter, config in self._adapters:
            weight = adapters.merged_weight(name, weight, adapter, config)
        rounded = weight.to(dtype)
        if dtype is torch.float16 and weight.dtype is not dtype and not is_finite(rounded):
            raise TraindeckError("export.too_large", name=name)
        return rounded


def write_merged(folder: Path, target: Path, reporter: Reporter, dtype: torch.dtype | None = None) -> None:
    """Write the weights of the merged model to the file `target`, one tensor at a time.

    `dtype`: None for the dtypes of the base model or checkpoint. A model that transformers computes is written by
    transformers, as a whole. Raises as `load_merged` and `MergedWeights.read`, and `disk.full`.
    """
    if isinstance(read_shape(folder), TransformersConfig):
        _write_by_transformers(folder, target, dtype)
        return
    weights, done = MergedWeights(folder, reporter), 0
    shapes = {name: tensor.to(dtype or tensor.dtype) for name, tensor in weights.shapes.items()}
    total = sum(tensor.nbytes for tensor in shapes.values())

    def read(name: str) -> torch.Tensor:
        nonlocal done
        done += shapes[name].nbytes
        reporter.progress("saving", done, total, "bytes")
        return weights.read(name, shapes[name].dtype)

    with files.translate_os_errors(target, total):
        if files.free_bytes(target.parent) < total:
            raise files.disk_full_error(target.parent, total)
        write_tensors(target, shapes, read)


def _merged_shape(name: str, entry: TensorEntry, merged: Sequence[_Adapter]) -> torch.Tensor:
    """An empty tensor on the device `meta`. Trained embeddings may have more rows than those of the base model."""
    trained = (adapter[adapters.PREFIX + name].shape for adapter, _ in merged if adapters.PREFIX + name in adapter)
    *_, shape = (entry.shape, *trained)
    return torch.empty(shape, dtype=DTYPES[entry.dtype], device="meta")


def _write_by_transformers(folder: Path, target: Path, dtype: torch.dtype | None) -> None:
    """Write the weights under the names that other programs expect."""
    model = load_merged(folder)
    assert isinstance(model, TransformersModel)
    with files.translate_os_errors(target), tempfile.TemporaryDirectory(dir=target.parent) as working:
        model.save_folder(Path(working), dtype or weights_dtype(folder))
        files.replace(Path(working) / weight_files.SINGLE_FILE, target)
