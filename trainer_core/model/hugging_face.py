"""Our decoder in Hugging Face's words: which family it is, and its `config.json`.

State dicts need no translation (see decoder.py). Sources of the field names: the `config.json` of
Llama, Qwen2 and Qwen3 models, and transformers' `configuration_{llama,qwen2,qwen3}.py`.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import ModelConfig

_FAMILIES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LARGEST: Final = {
    "vocab_size": 4_194_304,
    "used_vocab_size": 4_194_304,
    "hidden_size": 65_536,
    "num_hidden_layers": 512,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "intermediate_size": 262_144,
    "max_position_embeddings": 1_048_576,
}  # as our own knobs have it; no model is larger
_LARGEST_NUMBER: Final = 1e12


def family(config: ModelConfig) -> str:
    """The family whose code computes exactly this decoder."""
    if config.qk_norm:
        return "qwen3"
    return "qwen2" if config.qkv_bias else "llama"


def to_dict(config: ModelConfig, end_id: int, pad_id: int, bos_id: int | None = None) -> dict[str, Any]:
    """The content of `config.json`. `end_id` ends a text or an answer; `bos_id` begins one, None: no token does."""
    kind = family(config)
    return {
        "architectures": [_FAMILIES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,  # read by Llama and Qwen3; Qwen2 always has its q, k, v bias
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "use_sliding_window": False,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
        "bos_token_id": bos_id,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
        "used_vocab_size": config.used_vocab,  # ours; 0: all rows stand for tokens
    }


def from_dict(values: dict[str, Any], path: str) -> ModelConfig:
    """The shape that a `config.json` describes. Raises `checkpoint.mismatch` for other families."""
    kind = values.get("model_type")
    if kind not in _FAMILIES:
        raise TraindeckError("checkpoint.mismatch", path=path, what=f"model_type is {kind}")
    size = functools.partial(_size, values, path)
    heads = size("num_attention_heads")
    groups = size("num_key_value_heads", heads)
    if size("hidden_size") % heads or heads % groups:
        what = f"{heads} heads and {groups} key/value heads for a width of {size('hidden_size')}"
        raise TraindeckError("checkpoint.mismatch", path=path, what=what)
    return ModelConfig(
        vocab_size=size("vocab_size"),
        hidden_dim=size("hidden_size"),
        n_layers=size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=groups,
        mlp_dim=size("intermediate_size"),
        max_seq_len=size("max_position_embeddings"),
        rope_theta=_number(values, path, "rope_theta", 10_000.0),
        norm_eps=_number(values, path, "rms_norm_eps"),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        used_vocab=size("used_vocab_size", 0),
    )


def _size(values: dict[str, Any], path: str, name: str, default: int | None = None) -> int:
    """A number of rows or layers that there could be: whoever believes 10**12 takes memory for them."""
    value = values.get(name)
    if not value and default is not None:
        return default
    if not isinstance(value, int) or not 1 <= value <= _LARGEST[name]:
        raise TraindeckError("checkpoint.mismatch", path=path, what=f"{name} is {value!r:.40}")
    return value


def _number(values: dict[str, Any], path: str, name: str, default: float | None = None) -> float:
    value = values.get(name) or default
    if not isinstance(value, int | float) or not 0 < value < _LARGEST_NUMBER:
        raise TraindeckError("checkpoint.mismatch", path=path, what=f"{name} is {value!r:.40}")
    return float(value)
