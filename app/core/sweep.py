"""Parameter sweep: runs with several values of one or two knobs."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.core.queue import unique_name
from trainer_core.config import Config, Knob, check_combinations, check_value, knobs
from trainer_core.messages import TraindeckError

Scale = Literal["linear", "log"]
MAX_VALUES: Final = 32
MAX_RUNS: Final = 100
_SWEEPABLE_KINDS: Final = ("int", "float", "bool", "choice")
_NAME_PREFIXES: Final = {
    "learning_rate": "lr",
    "min_learning_rate_ratio": "minlr",
    "lr_schedule": "",
    "optimizer": "",
    "batch_size": "bs",
    "gradient_accumulation_steps": "acc",
    "max_steps": "steps",
    "max_epochs": "epochs",
    "max_seq_len": "seq",
    "hidden_dim": "dim",
    "n_layers": "layers",
    "n_heads": "heads",
    "n_kv_heads": "kv",
    "mlp_dim": "mlp",
    "weight_decay": "wd",
    "warmup_steps": "warmup",
    "grad_clip": "clip",
    "vocab_size": "vocab",
}
"""Abbreviation of a knob in run names; empty: the value suffices."""


@dataclass(frozen=True, slots=True)
class SweepParameter:
    """A knob and its values."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a sweep. `error`: why it is invalid."""

    name: str
    changes: dict[str, Any]
    swept_values: dict[str, Any] = field(default_factory=dict)  # swept knobs only
    error: TraindeckError | None = None


def sweepable_keys() -> list[str]:
    """Knobs that a sweep supports, in the order of `Config`."""
    return [name for name, knob in knobs().items() if knob.kind in _SWEEPABLE_KINDS]


def parse_values(knob: Knob, text: str) -> list[Any]:
    """Parse values separated by commas or spaces, without duplicates.

    Raises `config.bad_value` for the first invalid one.
    """
    return list(dict.fromkeys(check_value(knob.name, part, knob.flag) for part in _split_values(text)))


def invalid_values(knob: Knob, text: str) -> list[str]:
    """Invalid values, as typed."""
    return [part for part in dict.fromkeys(_split_values(text)) if not _is_valid(knob, part)]


def _split_values(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).replace("−", "-").strip()
    return [part for part in re.split(r"[\s,;、]+", plain) if part]


def _is_valid(knob: Knob, part: str) -> bool:
    try:
        check_value(knob.name, part, knob.flag)
    except TraindeckError:
        return False
    return True


def spaced_values(knob: Knob, low: str, high: str, count: int, scale: Scale) -> list[Any]:
    """`count` values from `low` to `high`, both included, on a linear or log scale.

    Whole numbers are rounded, others to three digits; duplicates are removed. Raises `config.bad_value` for an invalid
    limit. Empty for a log scale from 0 or below.
    """
    first, last = (parse_values(knob, end)[:1] for end in (low, high))
    if not first or not last or count < 1 or (scale == "log" and min(first[0], last[0]) <= 0):
        return []
    a, b = float(first[0]), float(last[0])
    shares = [place / (count - 1) for place in range(count)] if count > 1 else [0.0]
    between = [a * math.pow(b / a, share) if scale == "log" else a + (b - a) * share for share in shares]
    whole = knob.kind == "int"
    rounded = [round(value) if whole else float(f"{value:.3g}") for value in between]
    ends = [first[0], *rounded[1:-1], last[0]] if count > 1 else [first[0]]
    return list(dict.fromkeys(check_value(knob.name, value, knob.flag) for value in ends))


def plan_runs(
    base: str,
    preset_values: Mapping[str, Any],
    changes: Mapping[str, Any],
    parameters: Sequence[SweepParameter],
    taken: set[str],
) -> list[PlannedRun]:
    """All combinations of both knobs' values.

    `base`: prefix of the names. `taken`: names in use.
    """
    planned: list[PlannedRun] = []
    names = set(taken)
    for combination in itertools.islice(itertools.product(*(axis.values for axis in parameters)), MAX_RUNS):
        values = {axis.name: value for axis, value in zip(parameters, combination, strict=True)}
        both = {**changes, **values}
        if "batch_size" in values:
            both["auto_batch"] = False  # otherwise the number is only the start of the search
        name = unique_name("-".join([base, *(name_suffix(knob, value) for knob, value in values.items())]), names)
        names.add(name)
        planned.append(PlannedRun(name, both, values, _validation_error({**preset_values, **both})))
    return planned


def name_suffix(knob: str, value: Any) -> str:
    """A value in a name: `lr1e-3`, `bs16`, `muon`, `packing-on`."""
    short = _NAME_PREFIXES.get(knob, knob.replace("_", "-") + "-")
    return f"{short}{_format_value(value)}"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value and not 1e-2 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _validation_error(values: Mapping[str, Any]) -> TraindeckError | None:
    try:
        check_combinations(Config(**values))
    except TraindeckError as error:
        return error
    return None
