"""Device-to-host metrics without synchronization.

On CUDA, values are copied to pinned memory on the current stream and read once their event has completed, usually a few
steps later. On a CPU they are available immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class AsyncMetrics(Generic[T]):
    """FIFO of pending scalar reads. Each entry carries the context needed to interpret its values."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._asked: deque[tuple[T, Tensor, torch.cuda.Event | None]] = deque()

    def record(self, context: T, values: Sequence[Tensor]) -> None:
        """Enqueue `values` (any shapes, flattened in order) as of this point in the stream."""
        together = torch.cat([value.detach().double().flatten() for value in values])
        if not self._on_gpu:
            self._asked.append((context, together, None))
            return
        there = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
        there.copy_(together, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._asked.append((context, there, arrived))

    def completed(self, wait: bool = False) -> Iterator[tuple[T, list[float]]]:
        """Yield completed entries, oldest first. With `wait`, block until all have completed."""
        while self._asked:
            about, values, arrived = self._asked[0]
            if arrived is not None and not (wait or arrived.query()):  # type: ignore[no-untyped-call]
                return
            if arrived is not None:
                arrived.synchronize()
            self._asked.popleft()
            yield about, values.tolist()

    def clear(self) -> None:
        """Discard pending entries, e.g. after a rollback."""
        self._asked.clear()
