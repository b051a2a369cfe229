"""Content of a checkpoint, and how a run continues from it. `checkpoint_writer.py` writes it.

The folder is a Hugging Face model folder (`config.json`, `model.safetensors`, `tokenizer.json`) plus the training
state: `optimizer.safetensors` (moments and RNG states) and `state.json` (counters and versions). An adapter replaces
`model.safetensors`, see `adapter_checkpoint.py`. No pickle.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer_core import __version__
from trainer_core.base_model import weights
from trainer_core.base_model.weight_files import read_header
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters, hf_config
from trainer_core.models.build import build_model
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import LanguageModelConfig
from trainer_core.models.sharding import Rows, copy_whole, is_sharded, local_tensor, rows_of, whole_shape
from trainer_core.protocol import CheckpointKind
from trainer_core.system import files
from trainer_core.train import optimizers
from trainer_core.train.checkpoint_writer import CheckpointContent
from trainer_core.train.optimizers import ADAMW_STATE, MuonWithAdamW

_FINGERPRINT_COUNTS: Final = {"eval_batches", "eval_sequences", "samples_per_epoch"}
_DAMAGE: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class Counters:
    """Progress of a run: what the loop counts and cannot compute."""

    step: int
    position: int  # samples (sequences in the order of the epochs) used since the run began: the complete data state
    warmup_samples: int | None = None  # length of the warmup, fixed at the run's first start
    tokens: int = 0  # in the loss
    samples: int = 0
    loss_sum: float = 0.0  # since the last step event, so that a resumed run reports the same
    loss_tokens: int = 0  # of `loss_sum`; with preferences its pairs
    reward_sums: list[float] = field(default_factory=list)  # of the same steps, see `preferences.RewardSums`
    best_loss: float | None = None  # with preferences: of the evaluation with the best reward
    best_reward: float | None = None
    seconds: float = 0.0  # in steps
    last_evaluated_step: int = 0  # newest step whose evaluation and samples are done


class Stateful(Protocol):
    """A part of training with a state of plain values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""


class PartitionedState(Protocol):
    """Weights and moments that a library has divided among ranks. All ranks call these methods together."""

    def collect(self, weight: Tensor) -> dict[str, Tensor]:
        """Copies in system memory of the whole `weight`, under this name, and of its moments."""

    def copy_weight(self, source: Tensor, target: Tensor) -> None:
        """Copy a whole tensor into a weight."""

    def load_moments(self, moments: Iterable[tuple[Tensor, dict[str, Tensor]]]) -> None:
        """Replace the moments of all weights; those that are missing begin anew."""


@dataclass(slots=True)
class TrainState:
    """Everything that a checkpoint holds and a resume restores."""

    model: LanguageModel
    optimizer: MuonWithAdamW
    scaler: torch.amp.GradScaler
    parts: dict[str, Stateful] = field(default_factory=dict)
    counters: Counters = field(default_factory=lambda: Counters(step=0, position=0))
    run_fingerprint: dict[str, Any] = field(default_factory=dict)  # settings that an exact resume requires unchanged
    engine: dict[str, Any] = field(default_factory=dict)  # `Engine.choices`
    base: dict[str, Any] = field(default_factory=dict)
    """The base model: see `adapter_checkpoint.base_of`. Empty: a new model."""
    partitioned: PartitionedState | None = None
    collected: dict[Tensor, dict[str, Tensor]] = field(default_factory=dict)
    """Of `partitioned`, while a checkpoint is written."""

    def value(self, weight: Tensor) -> Tensor:
        """A weight as checkpoints hold it."""
        return self.collected[weight]["weight"] if weight in self.collected else weight.detach()

    def moments(self, weight: Tensor) -> dict[str, Tensor]:
        """What the optimizer keeps of a weight."""
        if weight in self.collected:
            return {key: value for key, value in self.collected[weight].items() if key != "weight"}
        return self.optimizer.state.get(weight, {})  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def collecting(self, keep: bool) -> Iterator[None]:
        """Context in which a checkpoint can be written. With `partitioned`, all ranks enter together, one with `keep`:
        it needs system memory for all weights and moments.
        """
        trained_only = adapters.has_adapter(self.model)
        weights = self.model.parameters() if self.partitioned is not None else ()
        for weight in weights:
            if weight.requires_grad or not trained_only:
                found = self.partitioned.collect(weight)  # type: ignore[union-attr]
                if keep:
                    self.collected[weight] = found
        try:
            yield
        finally:
            self.collected = {}


# --- writing -----------------------------------------------------------------------------------------


def build_content(
    state: TrainState,
    companions: dict[str, bytes],
    kind: CheckpointKind = "regular",
    eval_loss: float | None = None,
    eval_reward: float | None = None,
) -> CheckpointContent:
    """Content of a checkpoint of `state`. Tensors are not copied. `companions`: further small files by name
    (`config.json`, tokenizer).
    """
    if adapters.has_adapter(state.model):
        trained = adapters.adapter_weights(state.model).items()
        tensors = {adapters.ADAPTER_FILE: {name: state.value(weight) for name, weight in trained}}
        config = adapters.adapter_config(state.model, str(state.base.get("origin", "")))
        companions = {**companions, adapters.ADAPTER_CONFIG_FILE: config}
    else:
        tensors = {"model.safetensors": _weights(state)}
    tensors["optimizer.safetensors"] = _optimizer_tensors(state)
    rows = {file: rows for file, found in tensors.items() if (rows := _rows_by_name(state, found))}
    tensors = {file: {name: local_tensor(one) for name, one in found.items()} for file, found in tensors.items()}
    document = json.dumps(_state_document(state), indent=1, ensure_ascii=False).encode("utf-8")
    documents = {**companions, "state.json": document}
    step, copied = state.counters.step, bool(state.collected)
    return CheckpointContent(step, kind, eval_loss, tensors, documents, rows, eval_reward, copied)


def _weights(state: TrainState) -> dict[str, Tensor]:
    """Tied weights once, under their first name."""
    found = state.model.state_dict(keep_vars=True).items()
    weights = {id(weight): (name, weight) for name, weight in reversed(found)}
    return {name: state.value(weight) for name, weight in reversed(weights.values())}


def _rows_by_name(state: TrainState, tensors: dict[str, Tensor]) -> dict[str, Rows]:
    """The rows of sharded tensors of one file; moments are divided like their weights."""
    weights = dict(state.model.named_parameters())
    found = {}
    for name, tensor in tensors.items():
        weight = tensor if is_sharded(tensor) else weights.get(name.partition(".")[2], tensor)
        if tensor.dim() and (rows := rows_of(weight)) is not None:
            found[name] = rows
    return found


def _optimizer_tensors(state: TrainState) -> dict[str, Tensor]:
    """Optimizer state by weight name, and torch's RNG states."""
    tensors = rng_states(state.model)
    for name, weight in state.model.named_parameters():
        for key, value in state.moments(weight).items():
            tensors[f"{key}.{name}"] = value.detach()
    return tensors


def rng_states(model: LanguageModel) -> dict[str, Tensor]:
    """RNG states that training this model draws from."""
    states = {"generator.cpu": torch.get_rng_state()}
    # A pause moves the model off the GPU and may end in a stop.
    if _on_gpu(model) or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["generator.cuda"] = torch.cuda.get_rng_state()
    return states


def set_rng_states(model: LanguageModel, states: dict[str, Tensor]) -> None:
    """Restore RNG states."""
    torch.set_rng_state(states["generator.cpu"].clone())
    if _on_gpu(model) and "generator.cuda" in states:
        torch.cuda.set_rng_state(states["generator.cuda"].clone())


def _on_gpu(model: LanguageModel) -> bool:
    return model.head.weight.is_cuda or torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # parked in a pause


def _state_document(state: TrainState) -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "traindeck": __version__,
        "counters": asdict(state.counters),
        "run_fingerprint": state.run_fingerprint,
        "engine": state.engine,
        "base": state.base,
        "numerics": {name: part.state_dict() for name, part in state.parts.items()},
        "scaler": state.scaler.state_dict(),
        "python_random": [version, list(numbers), gauss],
        "numpy_random": [kind, [int(key) for key in keys], position, has_gauss, cached],
    }


# --- reading -----------------------------------------------------------------------------------------


def read_run_fingerprint(folder: Path) -> dict[str, Any]:
    """Read the run fingerprint of a checkpoint without loading it."""
    with _errors_as_damage(folder):
        # Values of checkpoints that do not record them
        found = {"optimizer": "adamw", "ranks": 1, "method": "full", **_read_state(folder)["run_fingerprint"]}
        for name in _FINGERPRINT_COUNTS & found.keys():
            if not isinstance(found[name], int):
                raise TypeError(f"{name} is {found[name]!r:.40}")
        return found


def read_counters(folder: Path) -> Counters:
    """Read the counters of a checkpoint without loading it."""
    with _errors_as_damage(folder):
        return msgspec.convert(_read_state(folder)["counters"], Counters)


def read_base(folder: Path) -> dict[str, Any]:
    """Read what a checkpoint records of its base model; empty: none."""
    with _errors_as_damage(folder):
        return dict(_read_state(folder).get("base", {}))


def _read_state(folder: Path) -> dict[str, Any]:
    """Read `state.json`. Raises `checkpoint.old_version` for a run of Traindeck 0.1."""
    document: dict[str, Any] = _read_json(folder, "state.json")
    if "run_fingerprint" not in document:
        raise TraindeckError("checkpoint.old_version", path=str(folder))
    return document


def load(folder: Path, state: TrainState) -> None:
    """Restore `state` in place. Raises `checkpoint.mismatch` or `checkpoint.damaged`.

    If the checkpoint is from another optimizer, only moments that both have are restored: from AdamW to Muon, matrices
    inside the layers start without moments; embeddings and norms keep theirs.
    """
    with _errors_as_damage(folder):
        _load(folder, state)


def _load(folder: Path, state: TrainState) -> None:
    document = _read_state(folder)
    store = copy_whole if state.partitioned is None else state.partitioned.copy_weight
    if adapters.has_adapter(state.model):
        adapters.load_adapter_weights(folder, state.model, store)
    else:
        load_weights(folder, state.model, store)
    with _open_tensors(folder / "optimizer.safetensors") as moments:
        if state.partitioned is not None:
            state.partitioned.load_moments(_adamw_moments(state, moments))
        else:
            _load_optimizer(state, moments)
        names = [name for name in set(moments.keys()) if name.startswith("generator.")]
        generators = {name: moments.get_tensor(name) for name in names}
    state.engine = dict(document.get("engine", {}))
    state.counters = msgspec.convert(document["counters"], Counters)
    for name, part in state.parts.items():
        part.load_state_dict(dict(document.get("numerics", {})).get(name, {}))
    if document["scaler"]:
        state.scaler.load_state_dict(document["scaler"])
    version, numbers, gauss = document["python_random"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = document["numpy_random"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    try:
        set_rng_states(state.model, generators)
    except RuntimeError as error:  # of another size
        raise ValueError(str(error)) from error


def _adamw_moments(state: TrainState, moments: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Complete moments of AdamW of each trained weight."""
    saved = set(moments.keys())
    for name, weight in state.model.named_parameters():
        if weight.requires_grad and saved.issuperset(f"{key}.{name}" for key in ADAMW_STATE):
            values = {key: moments.get_tensor(f"{key}.{name}") for key in ADAMW_STATE}
            if values["exp_avg"].shape != whole_shape(weight):
                raise ValueError(f"moments of {name} have another shape")
            yield weight, values


def _load_optimizer(state: TrainState, moments: Any) -> None:
    """Of sharded weights, only the rows of this rank are read."""
    saved = set(moments.keys())
    names = {weight: name for name, weight in state.model.named_parameters()}
    state.optimizer.state.clear()
    optimizers.allocate(state.optimizer)
    for group in state.optimizer.param_groups:
        for weight in group["params"]:
            values, name = state.optimizer.state[weight], names[weight]
            if not saved.issuperset(f"{key}.{name}" for key in values):  # at step 0 and from another optimizer
                del state.optimizer.state[weight]
                continue
            rows = rows_of(weight)
            for key, value in values.items():
                if rows is not None and value.dim():
                    moment = moments.get_slice(f"{key}.{name}")[rows.start : rows.start + len(value)]
                else:
                    moment = moments.get_tensor(f"{key}.{name}")
                if moment.shape != value.shape or moment.dtype != value.dtype:
                    raise ValueError(f"moments of {name} have another shape or dtype")
                value.copy_(moment)


def read_shape(folder: Path) -> LanguageModelConfig:
    """Read the model configuration of a checkpoint. Raises as `from_hf_config`, and `checkpoint.damaged`."""
    with _errors_as_damage(folder):
        return hf_config.from_hf_config(_read_json(folder, "config.json"), str(folder))


def require_weights(folder: Path, shape: LanguageModelConfig) -> None:
    """Check that the file holds weights of this shape before memory is allocated for them.

    Raises `checkpoint.mismatch` or `checkpoint.damaged`.
    """
    model = build_model(torch.device("meta"), shape)
    with _weight_errors(folder):
        weights.match(read_header(folder / "model.safetensors"), model)


def load_weights(folder: Path, model: LanguageModel, store: Callable[[Tensor, Tensor], None] = copy_whole) -> None:
    """Load only the weights, into a model of the same shape. Raises `checkpoint.mismatch` or `checkpoint.damaged`."""
    with _weight_errors(folder):
        weights.copy_file(folder / "model.safetensors", model, store)


@contextlib.contextmanager
def _weight_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except weights.WeightMismatchError as error:
        raise TraindeckError("checkpoint.mismatch", path=str(folder), reason=str(error)) from error
    except (OSError, SafetensorError) as error:
        raise _damaged_error(folder, error) from error


@contextlib.contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """A file of tensors, each of which is read when it is asked for."""
    with _weight_errors(path.parent), files.open_with_retry(path), safe_open(path, "pt") as tensors:
        yield tensors


@contextlib.contextmanager
def _errors_as_damage(folder: Path) -> Iterator[None]:
    """Report unreadable content as damage: a valid manifest does not guarantee valid content."""
    try:
        yield
    except (*_DAMAGE, msgspec.ValidationError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TraindeckError("checkpoint.damaged", detail=reason, path=str(folder), reason=reason) from error


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        with files.open_with_retry(folder / name) as file:
            loaded = json.load(file)
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise _damaged_error(folder, error) from error
    if not isinstance(loaded, dict):
        raise _damaged_error(folder, f"{name} holds no JSON object")
    return loaded


def _damaged_error(folder: Path, reason: object) -> TraindeckError:
    return TraindeckError("checkpoint.damaged", path=str(folder), reason=str(reason)[:200])
