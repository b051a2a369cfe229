"""Rotary positions in `config.json`.

transformers 4 has the base in `rope_theta` and the scaling in `rope_scaling`, for Gemma 3 also `rope_local_base_freq`.
transformers 5 has all of it in `rope_parameters`, for Gemma 3 in one object by layer type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from trainer_core.models.hf_values import HfValues
from trainer_core.models.model_config import ModelConfig, RopeConfig, RopeScaling

_DEFAULT_THETA: Final = 10_000.0
_GEMMA_THETA: Final = 1_000_000.0  # of layers without a sliding window
_NAMES: Final[dict[str, dict[str, str]]] = {  # of the fields of `RopeScaling`, by kind
    "default": {},
    "linear": {},
    "llama3": {
        "original_positions": "original_max_position_embeddings",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        "original_positions": "original_max_position_embeddings",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
}
_READ_ONLY: Final[dict[str, tuple[str, ...]]] = {"yarn": ("mscale", "mscale_all_dim")}  # written as `attention_factor`
_COMMON: Final = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def write(config: ModelConfig) -> dict[str, Any]:
    """Keys for both versions of transformers."""
    rope, local = config.rope, config.local_rope
    scaling = None if rope.scaling is None else _write_scaling(rope.scaling)
    written = {"rope_theta": rope.theta, "rope_scaling": scaling}
    if local is None:
        return {**written, "rope_parameters": _write_parameters(rope)}
    by_layer_type = {"full_attention": _write_parameters(rope), "sliding_attention": _write_parameters(local)}
    return {**written, "rope_local_base_freq": local.theta, "rope_parameters": by_layer_type}


def _write_parameters(rope: RopeConfig) -> dict[str, Any]:
    scaling = {"rope_type": "default"} if rope.scaling is None else _write_scaling(rope.scaling)
    return {"rope_theta": rope.theta, **scaling}


def _write_scaling(scaling: RopeScaling) -> dict[str, Any]:
    names = {name: getattr(scaling, attribute) for attribute, name in _NAMES[scaling.kind].items()}
    return {"rope_type": scaling.kind, "factor": scaling.factor, **names}


def read(found: HfValues, nested: bool) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary positions, and with `nested` those of layers with a sliding window.

    Raises `model.unsupported` for other kinds, and where keys contradict each other.
    """
    if not nested:
        return _merge(found, list(_objects(found)), "rope_theta", _DEFAULT_THETA), None
    full: list[HfValues] = []
    local: list[HfValues] = []
    for part in _objects(found):
        if part.prefix == "rope_scaling.":
            full.append(part)
            continue
        for name, parts in (("full_attention", full), ("sliding_attention", local)):
            parts.extend(_objects(part, (name,)))
        others = [name for name in part.values if name not in ("full_attention", "sliding_attention")]
        if others:
            raise part.unsupported(others[0])
    return (
        _merge(found, full, "rope_theta", _GEMMA_THETA),
        _merge(found, local, "rope_local_base_freq", _DEFAULT_THETA),
    )


def _objects(found: HfValues, names: tuple[str, ...] = ("rope_parameters", "rope_scaling")) -> Iterator[HfValues]:
    for name in names:
        value = found.values.get(name)
        if isinstance(value, dict):
            yield HfValues(value, found.path, f"{found.prefix}{name}.")
        elif value is not None:
            raise found.unsupported(name)


def _merge(found: HfValues, parts: list[HfValues], theta_name: str, default: float) -> RopeConfig:
    """One configuration from the places that hold it."""
    bases = {found.number(theta_name)} if found.values.get(theta_name) is not None else set()
    bases |= {part.number("rope_theta") for part in parts if part.values.get("rope_theta") is not None}
    if len(bases) > 1:
        raise found.unsupported(theta_name, sorted(bases))
    scalings = [scaling for part in parts if (scaling := _read_scaling(part, found)) is not None]
    if any(scaling != scalings[0] for scaling in scalings):
        raise found.unsupported("rope_scaling")
    return RopeConfig(theta=bases.pop() if bases else default, scaling=scalings[0] if scalings else None)


def _read_scaling(part: HfValues, found: HfValues) -> RopeScaling | None:
    kind_name = "rope_type" if part.values.get("rope_type") is not None else "type"
    kind = part.values.get(kind_name) or "default"
    if not isinstance(kind, str) or kind not in _NAMES:
        raise part.unsupported(kind_name)
    part.require({"partial_rotary_factor": 1.0})
    known = {*_COMMON, *_NAMES[kind].values(), *_READ_ONLY.get(kind, ()), *(() if kind == "default" else ("factor",))}
    for name, value in part.values.items():
        if name not in known and value is not None:
            raise part.unsupported(name)
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=part.number("factor"))
    positions = part.size("original_max_position_embeddings", found.size("max_position_embeddings"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=part.number("factor"),
            original_positions=positions,
            low_freq_factor=part.number("low_freq_factor"),
            high_freq_factor=part.number("high_freq_factor"),
        )
    return RopeScaling(
        kind="yarn",
        factor=part.number("factor"),
        original_positions=positions,
        beta_fast=part.number("beta_fast", 32.0),
        beta_slow=part.number("beta_slow", 1.0),
        attention_factor=_attention_factor(part),
        truncate=part.flag("truncate", default=True),
    )


def _attention_factor(part: HfValues) -> float:
    """YaRN's factor of cosine and sine, which may be given by others."""
    factor, names = part.number("factor"), ("mscale", "mscale_all_dim")
    if part.values.get("attention_factor") is not None:
        return part.number("attention_factor")
    if all(part.values.get(name) for name in names):
        above, below = (_mscale(factor, part.number(name)) for name in names)
        return above / below
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
