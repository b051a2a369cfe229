"""Parameter sweep: runs with several values of one or two knobs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.core.number_input import format_number, normalize_number
from trainer_core.config import Config, Knob, check_combinations, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.runs.run_dir import unique_name

MAX_RUNS: Final = 100
_SWEEPABLE_KINDS: Final = ("int", "float", "bool", "choice")
_NAME_PREFIXES: Final = {
    "learning_rate": "lr", "batch_size": "bs", "weight_decay": "wd", "hidden_dim": "dim", "max_steps": "steps",
    "lr_schedule": "", "optimizer": "",
}  # fmt: skip
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
    values: list[Any] = []
    invalid: list[str] = []
    for part in filter(None, re.split(r"[\s,;，；、]+", text)):
        try:
            values.append(check_value(knob.name, normalize_number(part), knob.flag))
        except TraindeckError:
            invalid.append(part)
    return list(dict.fromkeys(values)), list(dict.fromkeys(invalid))


def suggest_values(knob: Knob, value: Any) -> list[Any]:
    """Half, the same, and twice a number, as far as they are valid; all choices."""
    if knob.kind == "bool":
        return [True, False]
    if knob.kind == "choice":
        return list(knob.choices)
    factors = [value * factor for factor in (0.5, 1, 2)]
    rounded = [round(number) if knob.kind == "int" else float(f"{number:.6g}") for number in factors]
    return parse_values(knob, " ".join(map(str, rounded)))[0] or [value]


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
    return format_number(value) if isinstance(value, float) else str(value)


def _validation_error(values: Mapping[str, Any]) -> TraindeckError | None:
    try:
        check_combinations(Config(**values))
    except TraindeckError as error:
        return error
    return None
