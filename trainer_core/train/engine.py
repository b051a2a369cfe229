"""How a run computes: which of the fast paths it takes, and why. `Engine.loss` is what the loop calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.session import Session
from trainer_core.train.device import Precision
from trainer_core.train.evaluate import batch_loss


@dataclass
class Engine:
    """The forward pass of a run, as it was chosen for this machine."""

    model: Decoder
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that say how this run computes: saved in its checkpoints, and given back to `build` at a resume."""
    fast_paths: list[FastPath] = field(default_factory=list)
    compile_s: float | None = None
    """Seconds that compiling took; None: not compiled."""

    def loss(self, batch: Batch) -> Tensor:
        """Summed loss in nats of a micro-batch that is on the model's device; autocast is inside."""
        return self.eager_loss(batch)

    def eager_loss(self, batch: Batch) -> Tensor:
        """The same, never compiled."""
        with self.precision.autocast():
            return batch_loss(self.model, batch)


def build(
    config: Config,
    model: Decoder,
    device: torch.device,
    precision: Precision,
    session: Session,
    example: Batch,
    total_steps: int,
    recorded: dict[str, Any] | None,
) -> Engine:
    """The engine of a run. `example` is its first micro-batch (on any device), `recorded` the choices of a
    run that is gone on with."""
    return Engine(model, precision)
