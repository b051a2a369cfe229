"""What a configuration needs at least, by arithmetic: what is hopeless is not tried."""

from __future__ import annotations

from typing import Final

import torch

from trainer_core.config import Config
from trainer_core.model.decoder import Decoder, ModelConfig
from trainer_core.train.device import Precision

_FP32: Final = 4  # bytes of a weight, its gradient, and each of its moments


class Needs:
    """Bytes of a model in training. `least` is too low rather than too high: whether it fits is measured."""

    def __init__(self, config: Config, vocab_size: int, precision: Precision) -> None:
        with torch.device("meta"):
            model = Decoder(ModelConfig.of(config, vocab_size))
        shape = model.config
        self.parameters = model.count_parameters()
        inner = sum(
            weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name
        )
        moments = 2 * self.parameters - (inner if config.optimizer == "muon" else 0)  # Muon keeps one
        self.checkpoint = _FP32 * (self.parameters + moments)
        tokens = config.batch_size * config.max_seq_len
        again = config.activation_checkpointing == "full" or config.activation_memory_budget < 1
        wide = shape.hidden_dim if again else 4 * shape.hidden_dim + 2 * shape.mlp_dim  # numbers of a layer and token
        size = _FP32 if precision.dtype is None else 2
        logits = shape.vocab_size * _FP32 if config.chunked_loss == "off" else 0
        self.state = self.checkpoint + _FP32 * self.parameters
        self.least = self.state + tokens * (shape.n_layers * wide * size + logits)
