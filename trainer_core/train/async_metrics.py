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
        self._uses_cuda = device.type == "cuda"
        self._pending: deque[tuple[T, Tensor, torch.cuda.Event | None]] = deque()

    def record(self, context: T, values: Sequence[Tensor]) -> None:
        """Enqueue `values` (any shapes, flattened in order) as of this point in the stream."""
        flat = torch.cat([value.detach().double().flatten() for value in values])
        if not self._uses_cuda:
            self._pending.append((context, flat, None))
            return
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._pending.append((context, host, copied))

    def completed(self, wait: bool = False) -> Iterator[tuple[T, list[float]]]:
        """Yield completed entries, oldest first. With `wait`, block until all have completed."""
        while self._pending:
            context, values, copied = self._pending[0]
            if copied is not None and not (wait or copied.query()):  # type: ignore[no-untyped-call]
                return
            if copied is not None:
                copied.synchronize()
            self._pending.popleft()
            yield context, values.tolist()

    def clear(self) -> None:
        """Discard pending entries, e.g. after a rollback."""
        self._pending.clear()
