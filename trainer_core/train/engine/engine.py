"""The forward pass of a run: what the loop calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer_core.data.batches import Batch
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision
from trainer_core.train.engine import compiling
from trainer_core.train.engine.compiling import Recipe, Whole
from trainer_core.train.loss import batch_loss


@dataclass
class Engine:
    """The forward pass of a run, as it was chosen for this machine."""

    model: Decoder
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that say how this run computes: saved in its checkpoints, and given back to `build` at a resume."""
    fast_paths: list[FastPath] = field(default_factory=list)
    compile_s: float | None = None
    """Seconds that compiling took, in vain too, its comparison with eager included; None: nothing was compiled."""
    chunk: int = 0  # rows of logits at once; 0: all
    varlen: bool = False  # attention takes documents as spans
    compiled: Whole | None = None
    recipe: Recipe | None = None  # what `compiled` is for
    eager_only: bool = False  # memory ran out: what a graph keeps was decided when it was compiled
    smaller_chunk: int = 0  # in place of `chunk`, for the same reason; 0: as it is
    _recorded: bool = False  # `compiled` is away for as long as its graphs are not to be held

    def loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """Summed loss in nats of a micro-batch that is on the model's device; autocast is inside.

        `grad_scale`: the gradient that the loss gets in `backward`, 0-dim fp32 on the device; None: one. Required to
        keep small gradients in fp16 (see `loss.linear_token_loss`).
        """
        if self.eager_only or self.compiled is None or self.recipe is None or not self.recipe.fits(batch):
            return self.eager_loss(batch, grad_scale)
        if grad_scale is None and self.precision.needs_scaler:
            grad_scale = torch.ones((), device=batch.labels.device)  # None would need another graph
        with self.precision.autocast():
            return self.compiled(batch.input_ids, batch.labels, batch.segments, batch.positions, grad_scale)

    def eager_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """The same, never compiled."""
        chunk = self.smaller_chunk or self.chunk
        with self.precision.autocast():
            return batch_loss(self.model, batch, chunk=chunk, varlen=self.varlen, grad_scale=grad_scale)

    def reference_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """The same with all logits at once, where autograd scales before it rounds: `grad_scale` is not used."""
        with self.precision.autocast():
            return batch_loss(self.model, batch, varlen=self.varlen)

    def forget_graphs(self) -> None:
        """Drop recorded CUDA graphs, which hold the addresses of weights and the memory of a whole step."""
        if self.compiled is not None and self.recipe is not None and self.recipe.graphs:
            self.compiled, self._recorded = None, True
            compiling.forget_graphs()

    def record_again(self) -> None:
        """The same graphs again, from the compiler's cache."""
        if self._recorded and self.recipe is not None:
            self.compiled, self._recorded = compiling.compile_whole(self.model, self.recipe), False
