"""Rank of this process among those that train one model together.

Rank 0 was started by the user or the window, or is the first process of `torchrun`; only rank 0 communicates. No torch,
no Qt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainer_core.messages import TraindeckError

NONE: Final = {"WORLD_SIZE": "1"}
"""Environment of a child process that is no rank of the launcher."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of `size`."""

    rank: int
    size: int


def given(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The rank that a launcher such as `torchrun` assigned to this process; None: none, or the only one.

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
