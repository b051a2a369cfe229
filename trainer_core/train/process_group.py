"""The processes that train one model together. All run the same code and meet in the collective operations below.

`ProcessGroup` is a process alone; `torch_process_group.py` is one of several. Only rank 0 reads commands, emits events
and writes files. Values that only one rank can know (a command, memory that has run out) are agreed here before any
rank acts on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from torch import Tensor

from trainer_core.rank_info import RankInfo
from trainer_core.train.checkpoint_writer import Shards

T = TypeVar("T")


class PeerFailed(Exception):  # noqa: N818 - of another rank
    """Another rank has failed. Rank 0 reports it, so this one exits without an error message."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class ProcessGroup:
    """A process alone: every operation returns its own value."""

    rank, world_size, local_rank, local_world_size = 0, 1, 0, 1

    def broadcast(self, value: Any) -> Any:
        """A plain value of rank 0. None costs least."""
        return value

    def max(self, *values: int) -> list[int]:
        """The largest of each value on any rank."""
        return list(values)

    def gather(self, value: Any) -> list[Any]:
        """The plain value of each rank."""
        return [value]

    def sum(self, tensor: Tensor) -> None:
        """Make the tensor the sum over all ranks."""

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 while the others wait, however long it takes. All ranks return its plain result, or end:
        with its `StopRequested`, or because rank 0 has failed.
        """
        return work()

    def choose(self, make: Callable[[Any], T], choices: Callable[[T], Any], recorded: Any) -> T:
        """What `make(recorded)` gives on rank 0; on other ranks made from `choices` of that instead of `recorded`."""
        return make(recorded)

    def seed(self, seed: int, step: int) -> None:
        """Before a step that draws random numbers: ranks draw differently, a repeated step draws the same again."""

    def new_shards(self) -> Shards | None:
        """For the next checkpoint of sharded weights."""
        return None

    def doing(self, phase: str, step: int) -> None:
        """Record what this rank does, for the messages of ranks that wait for it in vain."""


SINGLE_PROCESS: Final = ProcessGroup()


@contextlib.contextmanager
def join(
    info: RankInfo | None, timeout_s: float | None = None, warn: Callable[..., None] = lambda code, **params: None
) -> Iterator[ProcessGroup]:
    """The process group of this process. A failure inside is reported to the other ranks.

    Only rank 0 gives `timeout_s`, the time limit of a collective operation, and `warn`, which receives warnings.
    """
    if info is None:
        yield SINGLE_PROCESS
        return
    from trainer_core.train.torch_process_group import join_group

    with join_group(info, timeout_s, warn) as group:
        yield group
