"""Hugging Face `config.json` of our decoder.

State dicts need no translation (see decoder.py). Sources of the field names: the `config.json` of Llama, Qwen2 and
Qwen3 models, and `configuration_{llama,qwen2,qwen3}.py` of transformers 4.57 and 5.23, whose defaults apply to missing
keys. The position base is `rope_theta` in transformers 4 and `rope_parameters.rope_theta` in 5.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from trainer_core.messages import TraindeckError
from trainer_core.models.decoder import ModelConfig

_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_MAX_SIZES: Final = {
    "vocab_size": 4_194_304,
    "used_vocab_size": 4_194_304,
    "hidden_size": 65_536,
    "num_hidden_layers": 512,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "intermediate_size": 262_144,
    "max_position_embeddings": 1_048_576,
}  # limits of our own knobs; no model is larger
_MAX_NUMBER: Final = 1e12
_DEFAULT_ROPE_THETA: Final = 10_000.0  # default of all three families
_SUPPORTED_VALUES: Final[dict[str, Any]] = {  # the only values that the decoder computes; None: the key must be missing
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope_interleaved": False,
}
_SUPPORTED_ROPE_VALUES: Final[dict[str, Any]] = {
    "rope_type": "default",
    "type": "default",
    "partial_rotary_factor": 1.0,
}
_DEFAULT_SLIDING_WINDOW, _DEFAULT_MAX_WINDOW_LAYERS = (
    4096,
    28,
)  # defaults of Qwen2 and Qwen3 for `sliding_window` and `max_window_layers`


def hf_model_type(config: ModelConfig) -> str:
    """The model type whose code computes exactly this decoder."""
    if config.qk_norm:
        return "qwen3"
    return "qwen2" if config.qkv_bias else "llama"


def to_hf_config(
    config: ModelConfig, eos_token_id: int, pad_token_id: int, bos_token_id: int | None = None
) -> dict[str, Any]:
    """The content of `config.json`. `eos_token_id` ends a text or an answer; `bos_token_id` begins one, or None."""
    kind = hf_model_type(config)
    return {
        "architectures": [_ARCHITECTURES[kind]],
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
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,  # read by Llama and Qwen3; Qwen2 always has its q, k, v bias
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "use_sliding_window": False,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "torch_dtype": "float32",
        "used_vocab_size": config.unpadded_vocab_size,  # ours; 0: all rows are tokens
    }


def from_hf_config(values: dict[str, Any], path: str) -> ModelConfig:
    """The architecture in a `config.json`.

    Raises `model.unsupported` for what the decoder does not compute, and `checkpoint.mismatch` for impossible sizes.
    """
    kind = values.get("model_type")
    if kind not in _ARCHITECTURES:
        raise _unsupported(path, "model_type", kind)
    size = functools.partial(_read_size, values, path)
    heads = size("num_attention_heads")
    groups = size("num_key_value_heads", heads)
    if size("hidden_size") % heads or heads % groups:
        what = f"{heads} heads and {groups} key/value heads for a width of {size('hidden_size')}"
        raise TraindeckError("checkpoint.mismatch", path=path, what=what)
    supported = {**_SUPPORTED_VALUES, "architectures": [_ARCHITECTURES[kind]], "head_dim": size("hidden_size") // heads}
    if kind == "qwen2":
        del supported["attention_bias"]  # not read: q, k and v always have one
    _require_supported(values, supported, path)
    _require_full_attention(values, path, size("num_hidden_layers"), size("max_position_embeddings"))
    tied = values.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise _unsupported(path, "tie_word_embeddings", tied)
    return ModelConfig(
        vocab_size=size("vocab_size"),
        hidden_dim=size("hidden_size"),
        n_layers=size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=groups,
        mlp_dim=size("intermediate_size"),
        max_seq_len=size("max_position_embeddings"),
        rope_theta=_rope_theta(values, path),
        norm_eps=_read_number(values, path, "rms_norm_eps"),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tie_embeddings=tied,
        unpadded_vocab_size=size("used_vocab_size") if values.get("used_vocab_size") else 0,
    )


def _require_supported(values: dict[str, Any], supported: dict[str, Any], path: str, prefix: str = "") -> None:
    """Raises `model.unsupported` for a key that is neither missing, null nor the supported value."""
    for name, value in supported.items():
        found = values.get(name)
        if found is not None and found != value:
            raise _unsupported(path, prefix + name, found)


def _require_full_attention(values: dict[str, Any], path: str, layers: int, length: int) -> None:
    """Raises `model.unsupported` if a layer attends to fewer than all `length` positions before it."""
    types = values.get("layer_types")
    if types is None:
        first = values.get("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS)
        slides = not isinstance(first, int) or first < layers
    elif isinstance(types, list) and set(map(str, types)) <= {"full_attention", "sliding_attention"}:
        slides = "sliding_attention" in types
    else:
        raise _unsupported(path, "layer_types", types)
    if not slides or not values.get("use_sliding_window"):
        return
    window = values.get("sliding_window", _DEFAULT_SLIDING_WINDOW)
    if window is not None and (not isinstance(window, int) or window < length):
        raise _unsupported(path, "sliding_window", window)


def _rope_theta(values: dict[str, Any], path: str) -> float:
    """The position base, from either place. Raises `model.unsupported` for any scaling of positions."""
    found = {_read_number(values, path, "rope_theta")} if values.get("rope_theta") is not None else set()
    for name in ("rope_parameters", "rope_scaling"):
        part = values.get(name)
        if part is None:
            continue
        if not isinstance(part, dict):
            raise _unsupported(path, name, part)
        _require_supported(part, _SUPPORTED_ROPE_VALUES, path, f"{name}.")
        for key, value in part.items():
            if key not in _SUPPORTED_ROPE_VALUES and key != "rope_theta" and value is not None:
                raise _unsupported(path, f"{name}.{key:.40}", value)
        if part.get("rope_theta") is not None:
            found.add(_read_number(part, path, "rope_theta"))
    if len(found) > 1:
        raise _unsupported(path, "rope_theta", sorted(found))
    return found.pop() if found else _DEFAULT_ROPE_THETA


def _unsupported(path: str, name: str, value: object) -> TraindeckError:
    return TraindeckError("model.unsupported", path=path, name=name, value=f"{value!r:.60}")


def _read_size(values: dict[str, Any], path: str, name: str, default: int | None = None) -> int:
    """A plausible number of rows or layers: 10**12 would allocate memory for them."""
    value = values.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or not 1 <= value <= _MAX_SIZES[name]:
        raise TraindeckError("checkpoint.mismatch", path=path, what=f"{name} is {value!r:.40}")
    return value


def _read_number(values: dict[str, Any], path: str, name: str) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or not 0 < value < _MAX_NUMBER:
        raise TraindeckError("checkpoint.mismatch", path=path, what=f"{name} is {value!r:.40}")
    return float(value)
