"""Forward pass of a run with its loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation
from trainer_core.train.engine.compilation import CompiledLoss, CompileKey
from trainer_core.train.loss import batch_loss

if TYPE_CHECKING:
    from trainer_core.train.engine.compile_switch import CompileSwitch


@dataclass
class Engine:
    """Computes the loss of micro-batches, eagerly or compiled."""

    model: Decoder
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that determine how the run computes. Checkpoints hold them; a resumed run repeats them."""
    fast_paths: list[FastPath] = field(default_factory=list)
    compile_s: float | None = None
    """Seconds that training waited for the compiler, failures included; None: nothing was compiled."""
    chunk: int = 0  # rows of logits at once; 0: all
    varlen: bool = False  # attention takes cumulative sequence lengths, not a mask
    switch: CompileSwitch | None = None  # pending
    compiled: CompiledLoss | None = None
    compile_key: CompileKey | None = None  # of `compiled`
    eager_only: bool = False  # OOM recovery: a graph has fixed what it keeps
    smaller_chunk: int = 0  # OOM recovery: replaces `chunk`; 0: unchanged
    _graphs_dropped: bool = False

    def loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """Summed loss in nats of a micro-batch on the model's device, under autocast.

        `grad_scale`: the gradient that the loss gets in `backward`, 0-dim fp32 on the device; None: one. Required to
        keep small gradients in fp16 (see `loss.linear_token_loss`).
        """
        if self.eager_only or self.compiled is None or self.compile_key is None or not self.compile_key.fits(batch):
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
        """The same with all logits at once. Autograd scales before it rounds, so `grad_scale` is not used."""
        with self.precision.autocast():
            return batch_loss(self.model, batch, varlen=self.varlen)

    def set_attention(self, name: str) -> None:
        """Use an attention backend of `models.attention.BACKENDS`."""
        backend = BACKENDS[name]
        self.model.set_attention(backend.attend)
        self.varlen, self.choices["attention"] = backend.uses_cu_seqlens, name

    def set_path(self, path: FastPath) -> None:
        """Replace the record of a fast path."""
        self.fast_paths = [path if path.name == known.name else known for known in self.fast_paths]

    def close(self) -> None:
        """Stop the background compiler."""
        if self.switch is not None:
            self.switch.close()

    def reset_graphs(self) -> None:
        """Drop recorded CUDA graphs, which hold the addresses of weights and the memory of a whole step."""
        if self.compiled is not None and self.compile_key is not None and self.compile_key.graphs:
            self.compiled, self._graphs_dropped = None, True
            compilation.reset_graphs()

    def rerecord_graphs(self) -> None:
        """Record the same graphs again, from the compiler's cache."""
        if self._graphs_dropped and self.compile_key is not None:
            self.compiled, self._graphs_dropped = compilation.compile_whole(self.model, self.compile_key), False
