"""Length of a run in steps and epochs. No Qt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.config import knobs


@dataclass(frozen=True, slots=True)
class RunLength:
    """`steps`, `epochs`: of the whole run; None: unknown before a preview."""

    limited_by_steps: bool  # otherwise by epochs
    steps: int | None
    epochs: float | None
    exact: bool = True  # False: one of both follows from an estimate


def compute_run_length(values: Mapping[str, Any], samples_per_epoch: int | None, *, exact: bool = True) -> RunLength:
    """`values`: knobs by name, without defaults. `samples_per_epoch`: sequences; `exact`: not estimated."""

    def value(name: str) -> int:
        return int(values.get(name, knobs()[name].default))

    per_step = value("batch_size") * value("gradient_accumulation_steps")
    per_epoch = math.ceil(samples_per_epoch / per_step) if samples_per_epoch else None
    max_steps, epochs = value("max_steps"), value("max_epochs")
    if max_steps:
        return RunLength(True, max_steps, max_steps / per_epoch if per_epoch else None, exact)
    return RunLength(False, epochs * per_epoch if per_epoch else None, float(epochs), exact)
