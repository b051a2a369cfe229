"""What a checkpoint holds, and how training goes on from it. `transaction.py` writes it.

The folder is a Hugging Face model folder as it stands (`config.json`, `model.safetensors`,
`tokenizer.json`), with what training needs to go on exactly beside it: `optimizer.safetensors`
(moments and generator states) and `state.json` (counters and versions). No pickle.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from trainer_core import __version__, files
from trainer_core.messages import TraindeckError
from trainer_core.model import hugging_face
from trainer_core.model.decoder import Decoder, ModelConfig
from trainer_core.protocol import Checkpoint, CheckpointKind
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import transaction
from trainer_core.train.transaction import Content, Keep

_TIED_HEAD: Final = "lm_head.weight"
_MOMENTS: Final = {"adamw": ("step", "exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}  # by a group's kind
_MADE_WITH_COUNTS: Final = {"eval_batches", "eval_sequences", "samples_per_epoch"}
_DAMAGE: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class Counters:
    """How far training is. Everything the loop counts, nothing it can compute."""

    step: int
    position: int  # samples (sequences in the order of an epoch) used since the run began: the whole data state
    warmup_samples: int | None = None  # the length of the warmup, from the run's first start
    tokens: int = 0  # tokens that counted in the loss
    samples: int = 0
    loss_sum: float = 0.0  # over the tokens since the last step event, so that a resume reports the same
    loss_tokens: int = 0
    best_loss: float | None = None
    seconds: float = 0.0  # spent in steps
    settled: int = 0  # the newest step whose evaluation and samples are done too


@dataclass(slots=True)
class TrainState:
    """All that a checkpoint holds and a resume brings back."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    counters: Counters = field(default_factory=lambda: Counters(step=0, position=0))
    made_with: dict[str, Any] = field(default_factory=dict)  # what must not change for an exact resume
    engine: dict[str, Any] = field(default_factory=dict)  # how the run computes (`Engine.choices`)
    numerics: dict[str, Any] = field(default_factory=dict)  # of `numerics`: the `state` of each, by name


# --- writing -----------------------------------------------------------------------------------------


def save(
    run: RunDir,
    state: TrainState,
    kind: CheckpointKind,
    companions: dict[str, bytes],
    *,
    eval_loss: float | None,
    keep_last: int,
    keep_best: int,
) -> Checkpoint:
    """Write, verify and rotate, as `transaction.write` does and raises."""
    return transaction.write(run, content(state, companions), kind, eval_loss, Keep(keep_last, keep_best))


def content(state: TrainState, companions: dict[str, bytes]) -> Content:
    """What a checkpoint of `state` holds. Its tensors are those that training goes on with, not copies. `companions`
    are further small files by name (`config.json`, tokenizer)."""
    tensors = {"model.safetensors": _weights(state.model), "optimizer.safetensors": _moments(state)}
    return Content(state.counters.step, tensors, {**companions, "state.json": _to_json(_state_document(state))})


def _weights(model: Decoder) -> dict[str, Tensor]:
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_embeddings:
        del weights[_TIED_HEAD]
    return weights


def _moments(state: TrainState) -> dict[str, Tensor]:
    """The optimizer's state by weight name, and the states of torch's generators."""
    tensors = generators(state.model)
    for name, weight in state.model.named_parameters():
        for key, value in state.optimizer.state.get(weight, {}).items():
            tensors[f"{key}.{name}"] = value.detach()
    return tensors


def generators(model: Decoder) -> dict[str, Tensor]:
    """The states of torch's generators that training with this model draws from."""
    states = {"generator.cpu": torch.get_rng_state()}
    # A pause takes the model off the GPU, and may end in a stop.
    if _on_gpu(model) or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["generator.cuda"] = torch.cuda.get_rng_state()
    return states


def set_generators(model: Decoder, states: dict[str, Tensor]) -> None:
    """Bring the states that `generators` gave back."""
    torch.set_rng_state(states["generator.cpu"].clone())
    if _on_gpu(model) and "generator.cuda" in states:
        torch.cuda.set_rng_state(states["generator.cuda"].clone())


def _on_gpu(model: Decoder) -> bool:
    return model.lm_head.weight.is_cuda or torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # parked in a pause


def _state_document(state: TrainState) -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "traindeck": __version__,
        "counters": asdict(state.counters),
        "made_with": state.made_with,
        "engine": state.engine,
        "numerics": state.numerics,
        "scaler": state.scaler.state_dict(),
        "python_random": [version, list(numbers), gauss],
        "numpy_random": [kind, [int(key) for key in keys], position, has_gauss, cached],
    }


def _to_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8")


# --- reading -----------------------------------------------------------------------------------------


def read_made_with(folder: Path) -> dict[str, Any]:
    """The settings that a checkpoint was made with, without loading it."""
    with _told_as_damage(folder):
        # What there was at first, when it was not written down
        found = {"optimizer": "adamw", "ranks": 1, **_read_json(folder, "state.json")["made_with"]}
        for name in _MADE_WITH_COUNTS & found.keys():
            if not isinstance(found[name], int):
                raise TypeError(f"{name} is {found[name]!r:.40}")
        return found


def read_counters(folder: Path) -> Counters:
    """How far the run of a checkpoint is, without loading it."""
    with _told_as_damage(folder):
        return msgspec.convert(_read_json(folder, "state.json")["counters"], Counters)


def read_engine(folder: Path) -> dict[str, Any]:
    """How the run of a checkpoint computed, without loading it. Empty: it was made before that was written down."""
    with _told_as_damage(folder):
        return dict(_read_json(folder, "state.json").get("engine", {}))


def load(folder: Path, state: TrainState) -> None:
    """Bring everything back into `state`, in place. Raises `checkpoint.mismatch` or `checkpoint.damaged`.

    Of a checkpoint that another optimizer made, those moments come back that the present one has too: from AdamW
    to Muon the matrices inside the layers begin without moments, embeddings and norms go on with theirs.
    """
    with _told_as_damage(folder):
        _load(folder, state)


def _load(folder: Path, state: TrainState) -> None:
    document = _read_json(folder, "state.json")
    load_weights(folder, state.model)
    moments = _read_tensors(folder / "optimizer.safetensors")
    _load_moments(state, moments)
    state.engine, state.numerics = dict(document.get("engine", {})), dict(document.get("numerics", {}))
    state.counters = msgspec.convert(document["counters"], Counters)
    if document["scaler"]:
        state.scaler.load_state_dict(document["scaler"])
    version, numbers, gauss = document["python_random"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = document["numpy_random"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    try:
        set_generators(state.model, moments)
    except RuntimeError as error:  # of another size
        raise ValueError(str(error)) from error


def _load_moments(state: TrainState, moments: dict[str, Tensor]) -> None:
    names = {weight: name for name, weight in state.model.named_parameters()}
    state.optimizer.state.clear()
    for group in state.optimizer.param_groups:
        for weight in group["params"]:
            found = {key: moments.get(f"{key}.{names[weight]}") for key in _MOMENTS[group["kind"]]}
            if all(value is not None for value in found.values()):  # step 0 has none, nor has another optimizer
                if any(value.numel() != 1 and value.shape != weight.shape for value in found.values()):  # type: ignore[union-attr]
                    raise ValueError(f"moments of {names[weight]} have another shape")
                state.optimizer.state[weight] = {key: value.clone().to(weight.device) for key, value in found.items()}  # type: ignore[union-attr]


def read_shape(folder: Path) -> ModelConfig:
    """The shape of a checkpoint's model. Raises `checkpoint.mismatch` or `checkpoint.damaged`."""
    with _told_as_damage(folder):
        return hugging_face.from_dict(_read_json(folder, "config.json"), str(folder))


def require_weights(folder: Path, shape: ModelConfig) -> None:
    """That the file holds weights of this shape, looked up before memory is taken for them.

    Raises `checkpoint.mismatch` or `checkpoint.damaged`.
    """
    with torch.device("meta"):
        wanted = {name: list(weight.shape) for name, weight in Decoder(shape).named_parameters()}
    try:
        path = folder / "model.safetensors"
        with files.opened(path), safe_open(path, "pt") as file:
            found = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, error) from error
    for name, rows in wanted.items():
        if found.get(name) != rows:
            raise TraindeckError("checkpoint.mismatch", path=str(folder), what=f"{name} {found.get(name)} → {rows}")


def load_weights(folder: Path, model: Decoder) -> None:
    """Only the weights, into a model of the same shape."""
    weights = _read_tensors(folder / "model.safetensors")
    if model.config.tie_embeddings and "model.embed_tokens.weight" in weights:
        weights[_TIED_HEAD] = weights["model.embed_tokens.weight"]
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        what = str(error).splitlines()[-1].strip()
        raise TraindeckError("checkpoint.mismatch", detail=str(error), path=str(folder), what=what) from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with files.opened(path):
            return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path.parent, error) from error


@contextlib.contextmanager
def _told_as_damage(folder: Path) -> Iterator[None]:
    """Files that are whole need not hold what they should: a manifest can vouch for anything."""
    try:
        yield
    except (*_DAMAGE, msgspec.ValidationError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TraindeckError("checkpoint.damaged", detail=reason, path=str(folder), reason=reason) from error


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        with files.opened(folder / name) as file:
            loaded = json.load(file)
    except (OSError, ValueError, RecursionError) as error:  # the last: `[[[[[…`
        raise _damaged(folder, error) from error
    if not isinstance(loaded, dict):
        raise _damaged(folder, f"{name} holds no JSON object")
    return loaded


def _damaged(folder: Path, reason: object) -> TraindeckError:
    return TraindeckError("checkpoint.damaged", path=str(folder), reason=str(reason)[:200])
