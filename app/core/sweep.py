"""Parameter sweep: runs with several values of one or two knobs."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainer_core.config import Config, Knob, check_combinations, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.runs.run_dir import unique_name

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
class PlannedRun:
    """A run of a sweep. `error`: why it is invalid."""

    name: str
    changes: dict[str, Any]
    swept_values: dict[str, Any]  # swept knobs only
    error: TraindeckError | None


def sweepable_keys() -> list[str]:
    """Knobs that a sweep supports, in the order of `Config`."""
    return [name for name, knob in knobs().items() if knob.kind in _SWEEPABLE_KINDS]


def parse_values(knob: Knob, text: str) -> tuple[list[Any], list[str]]:
    """Parse values separated by commas or spaces. Returns the valid ones, and the invalid ones as typed."""
    plain = unicodedata.normalize("NFKC", text).replace("−", "-")
    values: list[Any] = []
    invalid: list[str] = []
    for part in filter(None, re.split(r"[\s,;、]+", plain)):
        try:
            values.append(check_value(knob.name, part, knob.flag))
        except TraindeckError:
            invalid.append(part)
    return list(dict.fromkeys(values)), list(dict.fromkeys(invalid))


def spaced_values(knob: Knob, first: float, last: float, count: int, *, log_scale: bool) -> list[Any]:
    """`count` values from `first` to `last`, both included, on a linear or log scale.

    Whole numbers are rounded, others to three digits; duplicates are removed. A log scale needs positive limits.
    """
    space = np.geomspace if log_scale else np.linspace
    between = [round(value) if knob.kind == "int" else float(f"{value:.3g}") for value in space(first, last, count)]
    ends = [first, *between[1:-1], last] if count > 1 else [first]
    return list(dict.fromkeys(check_value(knob.name, value, knob.flag) for value in ends))


def plan_runs(
    base: str,
    preset_values: Mapping[str, Any],
    changes: Mapping[str, Any],
    parameters: Mapping[str, Sequence[Any]],
    taken: set[str],
) -> list[PlannedRun]:
    """All combinations of values. `base`: prefix of the names. `parameters`: values by knob. `taken`: used names."""
    planned: list[PlannedRun] = []
    names = set(taken)
    for combination in itertools.product(*parameters.values()):
        values = dict(zip(parameters, combination, strict=True))
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
