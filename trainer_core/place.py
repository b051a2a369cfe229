"""Which of several processes that train one model together this one is.

Processes are called ranks and counted from 0. Rank 0 is the one that a person or the window started, or the first
that `torchrun` did: it alone is spoken to and answers. No torch, no Qt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainer_core.messages import TraindeckError

NONE: Final = {"WORLD_SIZE": "1"}
"""In the environment of a process that takes no part in what the launcher has started."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of `size`."""

    rank: int
    size: int


def given(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that a launcher such as `torchrun` has given to this process; None: none, or it is the only one.

    Raises `ranks.one_machine`.
    """
    size = _number(environment, "WORLD_SIZE", 1)
    if size <= 1 or "RANK" not in environment:
        return None
    if _number(environment, "LOCAL_WORLD_SIZE", size) != size:
        raise TraindeckError("ranks.one_machine")
    return Place(_number(environment, "RANK", 0), size)


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else otherwise
