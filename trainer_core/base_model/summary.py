"""Facts about a base model before it is loaded, and how many of its weights a run trains. No torch."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from trainer_core.base_model import catalogue, modelscope, preset_run, source, weight_files
from trainer_core.base_model.catalogue import CatalogueModel, Shape
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.model_config import ModelConfig
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir

_CARD_BYTES: Final = 16_384
_LICENSE: Final = re.compile(r"^license:[ \t]*[\"']?([\w.+-]+)", re.MULTILINE)  # in the YAML header of a model card
_ROTARY_BUFFER: Final = ".rotary_emb.inv_freq"
_HEAD: Final = "lm_head.weight"
_EMBEDDINGS: Final = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A base model that can be used, or `error`. 0 and empty: not known."""

    name: str  # as given
    error: TraindeckError | None = None
    parameters: int = 0
    context: int = 0  # positions
    license: str = ""
    download_bytes: int = 0  # 0 also for a model on this disk
    is_local: bool = False
    preset: str = ""  # of `preset:NAME`
    entry: CatalogueModel | None = None
    shape: Shape | None = None
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes by name; for a model of the catalogue that is not on this disk, only matrices."""

    @property
    def has_problem(self) -> bool:
        return self.error is not None


def summarize(name: str) -> ModelSummary:
    """Summarize what `--base-model NAME` uses, without a request. Reads configuration and headers, and hashes a
    checkpoint.
    """
    try:
        if name.startswith(preset_run.PREFIX):
            preset = name.removeprefix(preset_run.PREFIX)
            run = preset_run.find_finished(preset)
            found_run = summarize_run(run) if run else None
            return replace(found_run or ModelSummary(name), name=name, preset=preset)
        found = source.find_local(name, lambda code, **params: None)
        entry = _find_entry(name)
        return _summarize_folder(name, found[0], entry) if found else _summarize_remote(name, entry)
    except TraindeckError as error:
        return ModelSummary(name, error)
    except OSError as error:
        return ModelSummary(name, weight_files.damaged_error(Path(name), error))


def summarize_run(run: Path) -> ModelSummary | None:
    """Summarize the newest complete checkpoint of a run, without hashing it; None if it is no base model."""
    folders = reversed(checkpoint_dir.list_checkpoints(RunDir(run).checkpoints))
    complete = next((folder for folder in folders if checkpoint_dir.find_problem(folder, hashes=False) is None), None)
    with contextlib.suppress(TraindeckError, OSError):
        return _summarize_folder(run.name, complete, None) if complete else None
    return None


def _summarize_folder(name: str, folder: Path, entry: CatalogueModel | None) -> ModelSummary:
    if (folder / weight_files.ADAPTER_CONFIG_FILE).is_file():
        return _summarize_adapter(name, folder)
    values = weight_files.read_json(folder / source.CONFIG_FILE)
    # transformers, which reads the others, imports torch
    config = hf_config.read_decoder(values, str(folder)) if hf_config.is_decoder(values) else None
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files.find_weights(folder):
        with weight_files.damage_errors(folder / file):
            shapes |= {key: tensor.shape for key, tensor in weight_files.read_header(folder / file).items()}
    shapes = {key: shape for key, shape in shapes.items() if not key.endswith(_ROTARY_BUFFER)}
    if config is not None and config.tie_embeddings:
        shapes.pop(_HEAD, None)
    return ModelSummary(
        name,
        parameters=sum(map(math.prod, shapes.values())),
        context=config.max_positions if config else 0,
        license=entry.license if entry else _read_license(folder),
        is_local=True,
        entry=entry,
        shape=_shape(config) if config else None,
        weights=shapes if config else {},
    )


def _summarize_adapter(name: str, folder: Path) -> ModelSummary:
    """Its base model. `source.resolve` compares the identities of both."""
    weight_files.find_weights(folder, weight_files.ADAPTER_FILE)
    base_name = str(weight_files.read_json(folder / weight_files.ADAPTER_CONFIG_FILE).get("base_model_name_or_path"))
    try:
        base = summarize(base_name)
    except RecursionError as error:
        raise TraindeckError("checkpoint.bad_adapter", path=str(folder), reason="it is its own base model") from error
    if base.error is not None:
        raise TraindeckError("checkpoint.no_base", base.error.code, path=str(folder), base=base_name)
    return replace(base, name=name)


def _shape(config: ModelConfig) -> Shape:
    return Shape(
        model_type=config.family,
        hidden_size=config.hidden_dim,
        intermediate_size=config.mlp.dim,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.attention.n_heads,
        num_key_value_heads=config.attention.n_kv_heads,
        head_dim=config.attention.head_dim,
        vocab_size=config.vocab_size,
        tie_word_embeddings=config.tie_embeddings,
    )


def _summarize_remote(name: str, entry: CatalogueModel | None) -> ModelSummary:
    if entry is None:
        return ModelSummary(name)
    return ModelSummary(
        name,
        parameters=entry.parameters,
        context=entry.context,
        license=entry.license,
        download_bytes=entry.download_bytes,
        entry=entry,
        shape=entry.shape,
        weights=dict(entry.shape.matrices()),
    )


def _find_entry(name: str) -> CatalogueModel | None:
    return _entries().get(name.partition("@")[0])


@functools.cache
def _entries() -> dict[str, CatalogueModel]:
    """The catalogue by the names of both hubs."""
    models = catalogue.load()
    on_modelscope = {f"{modelscope.PREFIX}{model.modelscope}": model for model in models if model.modelscope}
    return {model.id: model for model in models} | on_modelscope


def _read_license(folder: Path) -> str:
    with contextlib.suppress(OSError), (folder / "README.md").open("rb") as file:
        found = _LICENSE.search(file.read(_CARD_BYTES).decode("utf-8", "replace"))
        return found[1] if found else ""
    return ""


def count_trained(model: ModelSummary, config: Config) -> int | None:
    """Number of weights that a run trains, as `models.adapters` sets it up; None: not known."""
    if config.method != "full":
        return _count_adapter(model, config) if model.weights else None
    if not config.freeze:
        return model.parameters or None
    if not model.is_local or not model.weights:
        return None  # names of vectors are not known
    frozen = (key for key in model.weights if any(fnmatchcase(key, pattern) for pattern in config.freeze))
    return model.parameters - sum(math.prod(model.weights[key]) for key in frozen)


def _count_adapter(model: ModelSummary, config: Config) -> int:
    """Rank x (inputs + outputs) of each linear layer; with DoRA also a magnitude for each output."""
    count = 0
    for outputs, inputs in _linear_layers(model, config.lora_targets):
        count += config.lora_rank * (inputs + outputs) + (outputs if config.lora_variant == "dora" else 0)
    if config.lora_embeddings:
        count += sum(math.prod(model.weights.get(key, (0,))) for key in (_EMBEDDINGS, _HEAD))
    return count


def _linear_layers(model: ModelSummary, targets: list[str]) -> Iterator[tuple[int, int]]:
    for key, shape in model.weights.items():
        layer = key.removesuffix(".weight").rpartition(".")[2]
        if len(shape) == 2 and key not in (_EMBEDDINGS, _HEAD) and (not targets or layer in targets):
            yield shape[0], shape[1]
