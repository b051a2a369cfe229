"""Windows of micro-batches on their way to the device.

On a GPU the next window is copied on a stream of its own while the step before it computes. On a CPU nothing
is copied and nothing is taken before it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from trainer_core.data.batches import Batch

Window = list[Batch]


class Windows:
    """The windows of `source`, in its order, on `device`."""

    def __init__(self, source: Iterator[Window], device: torch.device) -> None:
        self._source, self._device = source, device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._next: Window | None = None
        self._copied: torch.cuda.Event | None = None

    def load(self) -> None:
        """Wait until the next window's data is there; on a GPU its copy is then under way."""
        if self._next is None:
            self._next, self._copied = next(self._source), None
            if self._side is not None:
                with torch.cuda.stream(self._side), contextlib.suppress(torch.OutOfMemoryError):
                    self._next = [batch.to(self._device) for batch in self._next]
                    self._copied = self._side.record_event()

    def prefetch(self) -> None:
        """The same where it pays: while a GPU computes."""
        if self._side is not None:
            self.load()

    def example(self) -> Batch:
        """The next micro-batch, which stays the next one."""
        return self._arrived()[0]

    def take(self) -> Window:
        """The next window, for work that the current stream is given from now on."""
        window, self._next = self._arrived(), None
        return window

    def tensors(self) -> list[Tensor]:
        """What the next window holds, as far as it was loaded."""
        return [tensor for batch in self._next or [] for tensor in batch.tensors()]

    def _arrived(self) -> Window:
        self.load()
        assert self._next is not None
        if self._side is not None and self._copied is None:  # there was no room for it while the step computed
            self._next = [batch.to(self._device) for batch in self._next]
        elif self._copied is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(self._copied)
            for batch in self._next:
                for tensor in batch.tensors():
                    tensor.record_stream(here)  # its memory belongs to the other stream, which must not use it again
        return self._next
