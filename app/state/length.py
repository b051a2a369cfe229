"""When a run ends: after its steps, or after its epochs. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.config import knobs


@dataclass(frozen=True, slots=True)
class Length:
    """`steps`, `epochs`: of the whole run; None: not known before the data was looked at."""

    by_steps: bool  # what ends it; else the epochs do
    steps: int | None
    epochs: float | None
    exact: bool = True  # False: the other one of the two follows from an estimate


def length_of(values: Mapping[str, Any], samples: int | None, *, exact: bool = True) -> Length:
    """`values`: knobs by name, defaults left out. `samples`: sequences of one epoch; `exact`: and no estimate."""

    def value(name: str) -> int:
        return int(values.get(name, knobs()[name].default))

    per_step = value("batch_size") * value("gradient_accumulation_steps")
    per_epoch = None if not samples else -(-samples // per_step)  # the short one at the end is a step too
    most, epochs = value("max_steps"), value("max_epochs")
    if most:
        return Length(True, most, most / per_epoch if per_epoch else None, exact)
    return Length(False, epochs * per_epoch if per_epoch else None, float(epochs), exact)
