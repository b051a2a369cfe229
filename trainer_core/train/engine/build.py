"""How a run computes is chosen here, among the fast paths.

Every choice is a plain value. It is made once, before the first step: from the settings, from a short measurement
where the run is long enough to pay for it, from what such a measurement said before (the same command on the same
machine chooses the same), or from the checkpoint that is gone on with. No path is used before it has given the
reference's loss and gradients on the run's own first batch, and none that fails ends a run.
"""

from __future__ import annotations

from typing import Any

import torch

from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.model.decoder import Decoder
from trainer_core.report import Reporter
from trainer_core.train import memory
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import available
from trainer_core.train.engine.choosing import Choosing
from trainer_core.train.engine.choosing_attention import choose_attention
from trainer_core.train.engine.choosing_compile import choose_compile, choose_graphs
from trainer_core.train.engine.choosing_simple import choose_chunk, choose_threads
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.measuring import undisturbed


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
    Random states, weights and gradients stay as they are. Raises `StopRequested`, and
    `MemoryError` where it is better built for fewer sequences.
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
