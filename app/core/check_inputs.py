"""Inputs of a check before Start, and settings of its alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.core.data_report_inputs import SourceStamp
from app.core.preview_cache import PreviewKey
from trainer_core.config import knobs
from trainer_core.protocol import MeasuredSettings

# Knobs without influence on memory, speed, length and disk. A new knob counts until it is listed here.
_EXCLUDED_KEYS: Final = frozenset(
    (
        "preset", "data", "learning_rate", "min_learning_rate_ratio", "warmup_steps",
        "lr_schedule", "plateau_patience", "plateau_factor", "muon_momentum", "weight_decay", "beta1", "beta2",
        "adam_epsilon", "grad_clip", "on_bad_step", "spike_factor", "bad_step_limit", "seed", "save_steps",
        "restarts",
    )
)  # fmt: skip
_EXCLUDED_GROUP: Final = "monitoring"
_TRIAL_KEYS: Final = ("batch_size", "gradient_accumulation_steps", "activation_checkpointing", "chunked_loss")


def check_key(values: Mapping[str, Any], data: Sequence[str], stamps: Sequence[SourceStamp] = ()) -> PreviewKey:
    """Cache key of a check. `values`: resolved knobs by name, without defaults. `stamps`: of the data."""
    names = [name for name, knob in knobs().items() if name not in _EXCLUDED_KEYS and knob.group != _EXCLUDED_GROUP]
    return (*data, *stamps, *(_hashable(values.get(name, knobs()[name].default)) for name in names))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def trial_settings(trial: MeasuredSettings) -> dict[str, Any]:
    """Knobs that make a configuration the measured one."""
    return {name: getattr(trial, name) for name in _TRIAL_KEYS}


def changed_settings(trial: MeasuredSettings, other: MeasuredSettings) -> dict[str, Any]:
    """Settings that differ between two measurements."""
    own, its = trial_settings(trial), trial_settings(other)
    return {name: value for name, value in own.items() if value != its[name]}
