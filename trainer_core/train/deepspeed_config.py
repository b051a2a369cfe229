"""Reads the JSON file of `deepspeed_config`, made for DeepSpeed or for the Hugging Face Trainer.

The run's settings give every "auto" value. What the file sets must agree with them. Optimizer, schedule and
micro-batches remain Traindeck's, so those sections are checked and left out.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.system import files
from trainer_core.train.batch_division import rank_config

_STAGES: Final = (1, 2, 3)
_OPTIMIZERS: Final = ("AdamW", "Adam")
_REPLACED: Final = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer", "scheduler",
)  # fmt: skip
_UNSUPPORTED: Final = (
    "amp", "torch_autocast", "elasticity", "curriculum_learning", "data_efficiency", "pipeline", "tensor_parallel",
    "compression_training",
)  # fmt: skip


def read(config: Config, precision: str, world_size: int, hidden_dim: int = 0) -> dict[str, Any]:
    """Settings for `deepspeed.initialize`. `hidden_dim`: of the model, for bucket sizes that are "auto".

    Raises `deepspeed.missing`, `deepspeed.bad_file`, `deepspeed.conflict`, `deepspeed.unsupported` or
    `config.parallel_unsupported`.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise TraindeckError("deepspeed.missing", python=sys.executable)
    if precision == "fp16":
        raise TraindeckError("config.parallel_unsupported", setting="mixed_precision fp16", parallel="deepspeed")
    path = Path(config.deepspeed_config)
    document = _read_json(path)
    expected = _settings(config, precision, world_size) | _bucket_sizes(hidden_dim)
    for place, value in list(_values(document)):
        if value == "auto" and ".".join(place) in expected:
            _replace(document, place, expected[".".join(place)])
    _require_agreement(document, expected, str(path))
    _require_supported(document, str(path))
    found = {name: value for name, value in document.items() if name not in _REPLACED}
    return {"steps_per_print": 2**31, **found, **_fixed_settings(found, config, precision, world_size)}


def _fixed_settings(found: dict[str, Any], config: Config, precision: str, world_size: int) -> dict[str, Any]:
    return {
        # A micro-batch has as many rows as fit, which the engine need not know
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {**_section(found, "bf16"), "enabled": precision == "bf16"},
        "gradient_clipping": config.grad_clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW needs no compiler
    }


def _require_agreement(document: dict[str, Any], expected: dict[str, Any], path: str) -> None:
    """Raises `deepspeed.conflict` for values that the run's settings determine otherwise."""
    for place, value in _values(document):
        name = ".".join(place)
        if name in expected and place[0] != "zero_optimization" and not _equal(value, expected[name]):
            wanted = json.dumps(expected[name])
            raise TraindeckError("deepspeed.conflict", path=path, name=name, given=json.dumps(value), expected=wanted)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with files.open_with_retry(path) as file:
            document = json.load(file)
        if not isinstance(document, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise TraindeckError("deepspeed.bad_file", path=str(path), reason=str(error)[:200]) from error
    return document


def _settings(config: Config, precision: str, world_size: int) -> dict[str, Any]:
    """What the run's settings give, by its place in the file."""
    each = rank_config(config, world_size)
    return {
        "train_batch_size": config.effective_batch,
        "train_micro_batch_size_per_gpu": each.batch_size,
        "gradient_accumulation_steps": each.gradient_accumulation_steps,
        "gradient_clipping": config.grad_clip,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": False,
        "optimizer.params.lr": config.learning_rate,
        "optimizer.params.betas": [config.beta1, config.beta2],
        "optimizer.params.eps": config.adam_epsilon,
        "optimizer.params.weight_decay": config.weight_decay,
        "scheduler.params.warmup_max_lr": config.learning_rate,
        "scheduler.params.warmup_num_steps": config.warmup_steps,
    }


def _bucket_sizes(hidden_dim: int) -> dict[str, int]:
    """As in transformers (integrations/deepspeed.py)."""
    return {
        "zero_optimization.reduce_bucket_size": hidden_dim**2,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_dim**2),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_dim,
    }


def _values(document: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All values that are not objects, each with the names that lead to it."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _values(value, (*place, name))
        else:
            yield (*place, name), value


def _replace(document: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for name in place[:-1]:
        document = document[name]
    document[place[-1]] = value


def _equal(given: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(given, list) and len(given) == len(expected) and all(map(_equal, given, expected))
    if isinstance(expected, bool) or not isinstance(given, int | float):
        return given is expected
    return math.isclose(given, expected, rel_tol=1e-6)


def _require_supported(document: dict[str, Any], path: str) -> None:
    """Raises `deepspeed.unsupported`."""
    zero = _section(document, "zero_optimization")
    unsupported = {name: document.get(name) for name in _UNSUPPORTED if _is_enabled(document.get(name))}
    unsupported |= _values_of_scheduler(document)
    for place, value in _values(document):
        if value == "auto" and place[0] != "scheduler":
            unsupported[".".join(place)] = value
    for section in ("offload_optimizer", "offload_param"):
        device = _section(zero, section).get("device", "none")
        if device not in ("none", "cpu"):
            unsupported[f"zero_optimization.{section}.device"] = device
    if zero.get("stage") not in _STAGES:
        unsupported["zero_optimization.stage"] = zero.get("stage")
    optimizer = _section(document, "optimizer").get("type", "AdamW")
    if optimizer not in _OPTIMIZERS:
        unsupported["optimizer.type"] = optimizer
    for name, value in unsupported.items():
        raise TraindeckError("deepspeed.unsupported", path=path, name=name, given=json.dumps(value))


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _is_enabled(section: Any) -> bool:
    return bool(section.get("enabled", True)) if isinstance(section, dict) else bool(section)


def _values_of_scheduler(document: dict[str, Any]) -> dict[str, Any]:
    """Values of a schedule that Traindeck's settings do not have."""
    parameters = _section(_section(document, "scheduler"), "params")
    known = ("warmup_max_lr", "warmup_num_steps")
    return {
        f"scheduler.params.{name}": value for name, value in parameters.items() if name not in known and value != "auto"
    }
