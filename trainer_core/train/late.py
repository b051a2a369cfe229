"""Values that are computed on a device and read some steps later, so that nobody waits for them.

On a GPU they are copied into page-locked memory behind the work that makes them, and read when the copy has
arrived. On a CPU they are there at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Late(Generic[T]):
    """Questions to the device, each with what is needed to make use of its answer; answered in turn."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._asked: deque[tuple[T, Tensor, torch.cuda.Event | None]] = deque()

    def ask(self, about: T, values: Sequence[Tensor]) -> None:
        """Read `values` (any shapes; answered one after the other) as they are at this place in the stream."""
        together = torch.cat([value.detach().double().flatten() for value in values])
        if not self._on_gpu:
            self._asked.append((about, together, None))
            return
        there = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
        there.copy_(together, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._asked.append((about, there, arrived))

    def answered(self, wait: bool = False) -> Iterator[tuple[T, list[float]]]:
        """What has arrived since, oldest first; all of it if `wait`."""
        while self._asked:
            about, values, arrived = self._asked[0]
            if arrived is not None and not (wait or arrived.query()):  # type: ignore[no-untyped-call]
                return
            if arrived is not None:
                arrived.synchronize()
            self._asked.popleft()
            yield about, values.tolist()

    def forget(self) -> None:
        """Drop what was asked: it is about steps that are done again."""
        self._asked.clear()
