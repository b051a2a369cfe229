"""What a check before Start depends on, and how its offers become settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.state.data_looks import Stamp
from app.state.looks import Key
from trainer_core.config import knobs
from trainer_core.protocol import Trial

# Everything matters to memory, speed, length or disk but these: a knob that is added matters until it is named here.
_NOT: Final = frozenset(
    (
        "preset", "data", "learning_rate", "min_learning_rate_ratio", "warmup_steps",
        "lr_schedule", "plateau_patience", "plateau_factor", "muon_momentum", "weight_decay", "beta1", "beta2",
        "adam_epsilon", "grad_clip", "on_bad_step", "spike_factor", "bad_step_limit", "seed", "save_steps",
        "restarts",
    )
)  # fmt: skip
_NOT_GROUP: Final = "monitoring"
_OFFERED: Final = ("batch_size", "gradient_accumulation_steps", "activation_checkpointing", "chunked_loss")


def key_of(values: Mapping[str, Any], data: Sequence[str], stamps: Sequence[Stamp] = ()) -> Key:
    """`values`: resolved knobs by name; those that are not there have their defaults. `stamps`: of the data."""
    names = [name for name, knob in knobs().items() if name not in _NOT and knob.group != _NOT_GROUP]
    return (*data, *stamps, *(_plain(values.get(name, knobs()[name].default)) for name in names))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def settings(trial: Trial) -> dict[str, Any]:
    """The knobs that make a configuration what was tried."""
    return {name: getattr(trial, name) for name in _OFFERED}


def differing(trial: Trial, other: Trial) -> dict[str, Any]:
    """The settings of a trial that are not those of the other one."""
    own, its = settings(trial), settings(other)
    return {name: value for name, value in own.items() if value != its[name]}
