"""Builds the model of a configuration."""

from __future__ import annotations

import torch

from trainer_core.models.decoder import build_decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import LanguageModelConfig, ModelConfig, TransformersConfig
from trainer_core.models.transformers_model import TransformersModel


def build_model(
    device: torch.device, config: LanguageModelConfig, initialize: bool = True, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """Build a model on a device, with initialized or with undefined weights in `dtype`."""
    if isinstance(config, ModelConfig):
        return build_decoder(device, config, initialize, dtype)
    assert isinstance(config, TransformersConfig)
    with device:
        return TransformersModel(config, initialize, dtype)
