"""Small architectures."""

from __future__ import annotations

from typing import Any

from trainer_core.config import Config
from trainer_core.models.model_config import ModelConfig
from trainer_core.train.model_shape import model_config_of


def model_shape(vocab_size: int, hidden_dim: int, n_layers: int, **knobs: Any) -> ModelConfig:
    """An architecture by knobs; 4 heads with 2 for keys and values, and an MLP of width 48, unless set."""
    defaults: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "mlp_dim": 48, "vocab_multiple": 1}
    config = Config(**{**defaults, **knobs, "hidden_dim": hidden_dim, "n_layers": n_layers})
    return model_config_of(config, vocab_size)
