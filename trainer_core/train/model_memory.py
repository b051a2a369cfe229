"""Memory that weights, gradients and moments take, without allocating them."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from trainer_core.base_model.catalogue import NF4_BYTES
from trainer_core.config import Config
from trainer_core.models.adapters import count_trainable, set_up_tuning
from trainer_core.models.build import build_model
from trainer_core.models.quantization import is_quantizable, offloads_embedding
from trainer_core.train.device import Precision
from trainer_core.train.model_shape import model_config_of, tuning_of
from trainer_core.train.optimizers import allocate, build_optimizer

_FP32_BYTES: Final = 4


class ModelMemory(NamedTuple):
    """Bytes, but for the number of `parameters`."""

    parameters: int
    weights: int
    gradients: int
    moments: int
    checkpoint: int

    @property
    def state(self) -> int:
        """All that training keeps between steps."""
        return self.weights + self.gradients + self.moments


def estimate_memory(config: Config, vocab_size: int, precision: Precision) -> ModelMemory:
    """Of the model of a configuration on its device, in one process."""
    tuning = tuning_of(config)
    model = build_model(torch.device("meta"), model_config_of(config, vocab_size))
    quantizable = sum(layer.weight.numel() for layer in filter(is_quantizable, model.backbone.modules()))
    with torch.device("meta"):
        set_up_tuning(model, tuning)
        optimizer = build_optimizer(model, config)
        allocate(optimizer)
    parameters, trained = model.count_parameters(), count_trainable(model)
    moments = sum(value.nbytes for values in optimizer.state.values() for value in values.values())
    saved = parameters if config.method == "full" else trained
    quantized = quantizable if config.method == "qlora" else 0
    frozen_bytes = precision.base_dtype(tuning).itemsize
    frozen = parameters - trained - quantized
    if config.method == "qlora" and precision.device_type == "cuda":
        tied = model.head.weight is model.embedding.weight
        frozen -= model.embedding.weight.numel() if offloads_embedding(tied, tuning, config.nproc_per_node) else 0
    weights = frozen_bytes * frozen + int(NF4_BYTES * quantized) + _FP32_BYTES * trained
    return ModelMemory(parameters, weights, _FP32_BYTES * trained, moments, _FP32_BYTES * saved + moments)
