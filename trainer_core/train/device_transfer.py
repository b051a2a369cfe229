"""Transfers accumulation windows to the device.

On a GPU, the next window is copied on its own stream during the current step. On a CPU nothing is copied or prefetched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer_core.data.batch import Batch
from trainer_core.train.batch_division import Share, divide


class AccumulationWindow(NamedTuple):
    """The micro-batches of one step."""

    share: Share  # of this rank, on its device
    whole: list[Batch]  # of all ranks, on any device
    answered: int | None = None  # samples whose answers these are; None: these are the samples

    @property
    def tokens(self) -> int:
        return sum(batch.loss_tokens for batch in self.whole)

    @property
    def loss_weight(self) -> int:
        """What the loss of the step is divided by."""
        return sum(batch.loss_weight for batch in self.whole)

    @property
    def sequences(self) -> int:
        """Samples in the order of the epoch."""
        rows = sum(batch.input_ids.shape[0] for batch in self.whole)
        return rows if self.answered is None else self.answered


_whole_window: Final = partial(divide, rank=0, world_size=1, max_rows=0)


class WindowLoader:
    """The windows of `source`, in order, on `device`. `share` divides a window, by default for one process."""

    def __init__(
        self,
        source: Iterator[list[Batch]],
        device: torch.device,
        share: Callable[[list[Batch]], Share] = _whole_window,
    ) -> None:
        self._source, self._device, self._share = source, device, share
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._next: AccumulationWindow | None = None
        self._copied: torch.cuda.Event | None = None

    def load(self) -> None:
        """Wait for the next window's data and start its copy to a GPU."""
        if self._next is None:
            whole = next(self._source)
            self._next, self._copied = AccumulationWindow(self._share(whole), whole), None
            if self._side is not None:
                with torch.cuda.stream(self._side), contextlib.suppress(torch.OutOfMemoryError):
                    self._next = self._to_device(self._next)
                    self._copied = self._side.record_event()

    def _to_device(self, window: AccumulationWindow) -> AccumulationWindow:
        share = [batch.to(self._device) for batch in window.share.batches]
        whole = share if window.share.batches is window.whole else window.whole
        return AccumulationWindow(window.share._replace(batches=share), whole)

    def prefetch(self) -> None:
        """The same, on a GPU only, where it overlaps with computation."""
        if self._side is not None:
            self.load()

    def example(self) -> Batch:
        """The next micro-batch, without consuming it; another rank's if this rank has none in this step."""
        window = self._wait_for_transfer()
        return window.share.batches[0] if window.share.batches else window.whole[0].to(self._device)

    def next_window(self) -> AccumulationWindow:
        """The next window, ready for use on the current stream."""
        window, self._next = self._wait_for_transfer(), None
        return window

    def tensors(self) -> list[Tensor]:
        """Tensors of the next window, if loaded."""
        return [tensor for batch in (self._next.share.batches if self._next else []) for tensor in batch.tensors()]

    def _wait_for_transfer(self) -> AccumulationWindow:
        self.load()
        assert self._next is not None
        if self._side is not None and self._copied is None:  # no memory for it during the step
            self._next = self._to_device(self._next)
        elif self._copied is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(self._copied)
            for batch in self._next.share.batches:
                for tensor in batch.tensors():
                    tensor.record_stream(here)  # allocated on the other stream, which must not reuse it yet
        return self._next
