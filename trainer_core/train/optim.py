"""AdamW with its parameter groups, and the learning rate of each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer_core.config import Config


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.AdamW:
    """Fused AdamW; matrices decay, norms and biases do not."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


def learning_rate(step: int, total_steps: int, config: Config) -> float:
    """The rate of the update that makes step number `step` (from 1): a pure function, so resume is exact.

    Linear warmup to the peak, then cosine, linear or constant down to its end share. A warmup longer
    than the run is cut to a tenth of it, so that a short trial still reaches its peak.
    """
    warmup = config.warmup_steps if config.warmup_steps < total_steps else total_steps // 10
    if step <= warmup:
        return config.learning_rate * step / warmup
    if config.lr_schedule == "constant":
        return config.learning_rate
    share = (step - warmup) / max(1, total_steps - warmup)
    low = config.min_learning_rate_ratio
    fall = 0.5 * (1 + math.cos(math.pi * share)) if config.lr_schedule == "cosine" else 1 - share
    return config.learning_rate * (low + (1 - low) * fall)
