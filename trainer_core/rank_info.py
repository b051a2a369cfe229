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

SINGLE_PROCESS_ENVIRONMENT: Final = {"WORLD_SIZE": "1"}
"""For a child process that is not a rank of the launcher."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Rank and world size."""

    rank: int
    size: int


def from_environment(environment: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The rank that a launcher such as `torchrun` assigned to this process; None: no launcher, or one process.

    Raises `ranks.one_machine`.
    """
    size = _number(environment, "WORLD_SIZE", 1)
    if size <= 1 or "RANK" not in environment:
        return None
    if _number(environment, "LOCAL_WORLD_SIZE", size) != size:
        raise TraindeckError("ranks.one_machine")
    return RankInfo(_number(environment, "RANK", 0), size)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
