"""Small `config.json` of every family and of every feature of the decoder, with the keys of transformers 4."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
_LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA_3 = {
    "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8, "layer_types": _LAYER_TYPES, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


def _config(model_type: str, **values: Any) -> dict[str, Any]:
    return {"model_type": model_type, **_SIZES, **values}


HF_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _config("llama", num_key_value_heads=6),
    "llama with grouped queries": _config("llama", rope_theta=500_000.0),
    "llama with a tied head": _config("llama", tie_word_embeddings=True),
    "llama with biases": _config("llama", attention_bias=True, mlp_bias=True),
    "llama with wide heads": _config("llama", head_dim=20),
    "llama with scaled frequencies": _config("llama", rope_theta=500_000.0, rope_scaling=_LLAMA_3),
    "llama with linear scaling": _config("llama", rope_scaling={"type": "linear", "factor": 4.0}),
    "mistral": _config("mistral", head_dim=12, sliding_window=None),
    "mistral with a sliding window": _config("mistral", sliding_window=8),
    "qwen2": _config("qwen2", num_key_value_heads=3),
    "qwen2 with a sliding window": _config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen2 with yarn": _config("qwen2", rope_scaling=_YARN, tie_word_embeddings=True),
    "qwen3": _config("qwen3", head_dim=8),
    "qwen3 with wide heads": _config("qwen3", head_dim=16, tie_word_embeddings=True, attention_bias=True),
    "qwen3 with a sliding window": _config(
        "qwen3", head_dim=8, use_sliding_window=True, sliding_window=8, layer_types=_LAYER_TYPES
    ),
    "qwen3 with yarn": _config("qwen3", head_dim=8, rope_scaling={**_YARN, "beta_fast": 4.0, "truncate": False}),
    "gemma 3": _config("gemma3_text", **_GEMMA_3, tie_word_embeddings=True),
    "gemma 3 with scaled positions": _config(
        "gemma3_text", **_GEMMA_3, attention_bias=True, rope_scaling={"rope_type": "linear", "factor": 8.0}
    ),
}
