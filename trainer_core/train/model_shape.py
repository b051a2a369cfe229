"""The architecture that a run's configuration describes, and what of it is trained."""

from __future__ import annotations

from typing import Any, Final

from trainer_core.base_model.configure import base_config
from trainer_core.config import Config, default_n_heads
from trainer_core.models.model_config import (
    AttentionConfig,
    Family,
    LanguageModelConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RopeConfig,
)

_LORA_SETTINGS: Final = (
    "method", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_variant", "lora_embeddings",
)  # fmt: skip


def model_config_of(config: Config, vocab_size: int) -> LanguageModelConfig:
    """The architecture for a run's knobs, with defaults resolved; of a base model, its own.

    The tokenizer's `vocab_size` is rounded up.
    """
    if config.base_model:
        return base_config(config, vocab_size)
    heads = config.n_heads or default_n_heads(config.hidden_dim)
    rows = -(-vocab_size // config.vocab_multiple) * config.vocab_multiple
    family: Family = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"
    return ModelConfig(
        family=family,
        vocab_size=rows,
        unpadded_vocab_size=vocab_size if rows > vocab_size else 0,
        hidden_dim=config.hidden_dim,
        n_layers=config.n_layers,
        attention=AttentionConfig(
            n_heads=heads,
            n_kv_heads=config.n_kv_heads or heads,
            head_dim=config.hidden_dim // heads,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
        ),
        mlp=MlpConfig(dim=config.mlp_dim or -(-(config.hidden_dim * 8 // 3) // 64) * 64),
        norm=NormConfig(eps=config.norm_eps),
        rope=RopeConfig(theta=config.rope_theta),
        tie_embeddings=config.tie_embeddings,
        max_seq_len=config.max_seq_len,
        max_positions=config.max_seq_len,
        dropout=config.dropout,
    )


def tuning_of(config: Config) -> dict[str, Any]:
    """The settings that determine what is trained, as plain values."""
    names = ("method", "freeze") if config.method == "full" else _LORA_SETTINGS
    return {name: getattr(config, name) for name in names}
