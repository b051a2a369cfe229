"""A small sweep: the same run with several values of one or two knobs."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.state.queue import free_name
from trainer_core.config import Config, Knob, check_together, check_value, knobs
from trainer_core.messages import TraindeckError

Scale = Literal["linear", "log"]
MOST_VALUES: Final = 32
MOST_RUNS: Final = 100
_KINDS: Final = ("int", "float", "bool", "choice")
_SHORT: Final = {
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
"""How a knob is called in the name of a run; empty: its value says enough."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob and the values that it takes, in turn."""

    knob: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a sweep. `error`: why no run can be made of it."""

    name: str
    changes: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)  # of the knobs that are swept
    error: TraindeckError | None = None


def sweepable() -> list[str]:
    """The knobs that a sweep can go over, in the order of `Config`."""
    return [name for name, knob in knobs().items() if knob.kind in _KINDS]


def typed(knob: Knob, text: str) -> list[Any]:
    """Values from what was typed, with commas or spaces between them, each once.

    Raises `config.bad_value` for the first that the knob does not take.
    """
    return list(dict.fromkeys(check_value(knob.name, part, knob.flag) for part in _parts(text)))


def refused(knob: Knob, text: str) -> list[str]:
    """The values in what was typed that the knob does not take, as they were typed."""
    return [part for part in dict.fromkeys(_parts(text)) if not _takes(knob, part)]


def _parts(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).replace("−", "-").strip()
    return [part for part in re.split(r"[\s,;、]+", plain) if part]


def _takes(knob: Knob, part: str) -> bool:
    try:
        check_value(knob.name, part, knob.flag)
    except TraindeckError:
        return False
    return True


def spread(knob: Knob, low: str, high: str, count: int, scale: Scale) -> list[Any]:
    """`count` values from `low` to `high`, both included, in even steps or even factors.

    Whole numbers are rounded, others to three digits; what falls together counts once. Raises `config.bad_value`
    for an end that the knob does not take. Even factors from 0 or below there are none: the answer is empty.
    """
    first, last = (typed(knob, end)[:1] for end in (low, high))
    if not first or not last or count < 1 or (scale == "log" and min(first[0], last[0]) <= 0):
        return []
    a, b = float(first[0]), float(last[0])
    shares = [place / (count - 1) for place in range(count)] if count > 1 else [0.0]
    between = [a * math.pow(b / a, share) if scale == "log" else a + (b - a) * share for share in shares]
    whole = knob.kind == "int"
    rounded = [round(value) if whole else float(f"{value:.3g}") for value in between]
    ends = [first[0], *rounded[1:-1], last[0]] if count > 1 else [first[0]]
    return list(dict.fromkeys(check_value(knob.name, value, knob.flag) for value in ends))


def plan(
    base: str, known: Mapping[str, Any], changes: Mapping[str, Any], axes: Sequence[Axis], taken: set[str]
) -> list[Planned]:
    """All runs of a sweep: every value of the first knob with every value of the second.

    `base`: what the names begin with. `known`: the preset's knobs. `taken`: names that are used.
    """
    planned: list[Planned] = []
    names = set(taken)
    for combination in itertools.islice(itertools.product(*(axis.values for axis in axes)), MOST_RUNS):
        values = {axis.knob: value for axis, value in zip(axes, combination, strict=True)}
        both = {**changes, **values}
        if "batch_size" in values:
            both["auto_batch"] = False  # or the number would only be where the search begins
        name = free_name("-".join([base, *(tag(knob, value) for knob, value in values.items())]), names)
        names.add(name)
        planned.append(Planned(name, both, values, _conflict({**known, **both})))
    return planned


def tag(knob: str, value: Any) -> str:
    """A value in a name: `lr1e-3`, `bs16`, `muon`, `packing-on`."""
    short = _SHORT.get(knob, knob.replace("_", "-") + "-")
    return f"{short}{_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value and not 1e-2 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _conflict(values: Mapping[str, Any]) -> TraindeckError | None:
    try:
        check_together(Config(**values))
    except TraindeckError as error:
        return error
    return None
