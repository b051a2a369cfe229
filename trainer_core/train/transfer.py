"""Windows of micro-batches on their way to the device.

On a GPU the next window is copied on a stream of its own while the step before it computes. On a CPU nothing
is copied and nothing is taken before it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trainer_core.data.batches import Batch


class Window(NamedTuple):
    """The micro-batches of one step."""

    share: list[Batch]  # what this rank computes, on its device
    whole: list[Batch]  # of all ranks together, wherever they lie

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.whole)

    @property
    def sequences(self) -> int:
        """Samples in the order of the epoch."""
        return sum(batch.input_ids.shape[0] for batch in self.whole)


class Windows:
    """The windows of `source`, in its order, on `device`. `deal` takes the part of each that this rank computes."""

    def __init__(
        self,
        source: Iterator[list[Batch]],
        device: torch.device,
        deal: Callable[[list[Batch]], list[Batch]] = lambda window: window,
    ) -> None:
        self._source, self._device, self._deal = source, device, deal
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._next: Window | None = None
        self._copied: torch.cuda.Event | None = None

    def load(self) -> None:
        """Wait until the next window's data is there; on a GPU its copy is then under way."""
        if self._next is None:
            whole = next(self._source)
            self._next, self._copied = Window(self._deal(whole), whole), None
            if self._side is not None:
                with torch.cuda.stream(self._side), contextlib.suppress(torch.OutOfMemoryError):
                    self._next = self._moved(self._next)
                    self._copied = self._side.record_event()

    def _moved(self, window: Window) -> Window:
        share = [batch.to(self._device) for batch in window.share]
        return Window(share, share if window.share is window.whole else window.whole)

    def prefetch(self) -> None:
        """The same where it pays: while a GPU computes."""
        if self._side is not None:
            self.load()

    def example(self) -> Batch:
        """The next micro-batch, which stays the next one; of another rank where this one has none in this step."""
        window = self._arrived()
        return window.share[0] if window.share else window.whole[0].to(self._device)

    def take(self) -> Window:
        """The next window, for work that the current stream is given from now on."""
        window, self._next = self._arrived(), None
        return window

    def tensors(self) -> list[Tensor]:
        """What the next window holds, as far as it was loaded."""
        return [tensor for batch in (self._next.share if self._next else []) for tensor in batch.tensors()]

    def _arrived(self) -> Window:
        self.load()
        assert self._next is not None
        if self._side is not None and self._copied is None:  # there was no room for it while the step computed
            self._next = self._moved(self._next)
        elif self._copied is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(self._copied)
            for batch in self._next.share:
                for tensor in batch.tensors():
                    tensor.record_stream(here)  # its memory belongs to the other stream, which must not use it again
        return self._next
