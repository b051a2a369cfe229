"""How a run computes. `build` chooses among the fast paths, `Engine.loss` is what the loop calls.

Every choice is a plain value. It is made once, before the first step: from the settings, from a short measurement
where the run is long enough to pay for it, from what such a measurement said before (the same command on the same
machine chooses the same), or from the checkpoint that is gone on with. No path is used before it has given the
reference's loss and gradients on the run's own first batch, and none that fails ends a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.report import Reporter
from trainer_core.train import available, memory
from trainer_core.train.choosing import Choosing
from trainer_core.train.choosing_attention import choose_attention
from trainer_core.train.choosing_compile import choose_compile, choose_graphs
from trainer_core.train.choosing_simple import choose_chunk, choose_threads
from trainer_core.train.compiling import Recipe, Whole
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.loss import batch_loss
from trainer_core.train.measuring import undisturbed


@dataclass
class Engine:
    """The forward pass of a run, as it was chosen for this machine."""

    model: Decoder
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that say how this run computes: saved in its checkpoints, and given back to `build` at a resume."""
    fast_paths: list[FastPath] = field(default_factory=list)
    compile_s: float | None = None
    """Seconds that compiling took, its comparison with eager included; None: not compiled."""
    chunk: int = 0  # rows of logits at once; 0: all
    varlen: bool = False  # attention takes documents as spans
    compiled: Whole | None = None
    recipe: Recipe | None = None  # what `compiled` is for

    def loss(self, batch: Batch) -> Tensor:
        """Summed loss in nats of a micro-batch that is on the model's device; autocast is inside."""
        if self.compiled is None or self.recipe is None or not self.recipe.fits(batch):
            return self.eager_loss(batch)
        with self.precision.autocast():
            return self.compiled(batch.input_ids, batch.labels, batch.segments, batch.positions)

    def eager_loss(self, batch: Batch) -> Tensor:
        """The same, never compiled."""
        with self.precision.autocast():
            return batch_loss(self.model, batch, chunk=self.chunk, varlen=self.varlen)

    def reference_loss(self, batch: Batch) -> Tensor:
        """The same with all logits at once."""
        with self.precision.autocast():
            return batch_loss(self.model, batch, varlen=self.varlen)


def build(
    config: Config,
    model: Decoder,
    device: torch.device,
    precision: Precision,
    session: Reporter,
    example: Batch,
    total_steps: int,
    recorded: dict[str, Any] | None,
    *,
    varying: bool | None = None,
    thorough: bool = False,
) -> Engine:
    """The engine of a run.

    `example` is its first micro-batch (on any device), `recorded` the choices of a run that is gone on with.
    `varying`: batches differ in width (None: they do where the example is narrower than the longest sequence).
    `thorough`: try everything, however short the run, and remember no choice (`doctor --fast-paths`).
    Random states, weights and gradients stay as they are. Raises `StopRequested`.
    """
    if varying is None:
        varying = example.input_ids.shape[1] != config.max_seq_len
    engine = Engine(model, precision)
    paths = {path.name: path for path in available.of_run(config, model, device, precision)}
    job = Choosing(
        config, engine, device, session, example.to(device), total_steps, varying, recorded, thorough, paths
    )  # fmt: skip
    with undisturbed(model, device):
        job.recall()
        choose_threads(job)
        choose_attention(job)
        choose_chunk(job)
        memory.checkpoint_activations(model, config.activation_checkpointing)
        choose_compile(job)
        choose_graphs(job)
    if device.type == "cuda":
        engine.choices["tf32"] = uses_tf32(config, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    job.remember()
    engine.fast_paths = list(job.paths.values())
    return engine
