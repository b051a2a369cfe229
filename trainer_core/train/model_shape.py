"""The architecture that a run's configuration describes."""

from __future__ import annotations

from trainer_core.config import Config, default_n_heads
from trainer_core.models.model_config import (
    AttentionConfig,
    Family,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RopeConfig,
)


def model_config_of(config: Config, vocab_size: int) -> ModelConfig:
    """The architecture for a run's knobs, with defaults resolved. The tokenizer's `vocab_size` is rounded up."""
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
