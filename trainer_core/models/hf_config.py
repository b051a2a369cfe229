"""Hugging Face `config.json`: of our decoder, and of models that transformers computes.

State dicts need no translation (see decoder.py). Sources of the field names: the `config.json` of published models, and
`configuration_*.py` and `modeling_rope_utils.py` of transformers 4.57 and 5.23, whose defaults apply to missing keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trainer_core.messages import TraindeckError
from trainer_core.models import hf_rope, transformers_config
from trainer_core.models.hf_values import HfValues
from trainer_core.models.model_config import (
    AttentionConfig,
    Family,
    LanguageModelConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    TransformersConfig,
)

_SLIDING, _FULL = "sliding_attention", "full_attention"  # values of `layer_types`


@dataclass(frozen=True, slots=True)
class _FamilyFormat:
    """What is particular to the `config.json` of a family. All values but those of the fields apply to all families."""

    architecture: str
    defaults: dict[str, Any]  # of missing keys
    supported: dict[str, Any] = field(default_factory=dict)  # as `_SUPPORTED`


_SUPPORTED: Final[dict[str, Any]] = {  # the only values that the decoder computes; None: the key must be missing
    "hidden_act": "silu",
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope_interleaved": False,
    "original_max_position_embeddings": None,
}
_QWEN_DEFAULTS: Final = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_FAMILIES: Final[dict[str, _FamilyFormat]] = {
    "llama": _FamilyFormat("LlamaForCausalLM", {}),
    "mistral": _FamilyFormat(
        "MistralForCausalLM",
        {"num_key_value_heads": 8, "sliding_window": 4096},
        {"attention_bias": False, "mlp_bias": False, "layer_types": None},
    ),
    "qwen2": _FamilyFormat("Qwen2ForCausalLM", _QWEN_DEFAULTS, {"mlp_bias": False}),
    "qwen3": _FamilyFormat("Qwen3ForCausalLM", {**_QWEN_DEFAULTS, "head_dim": 128}, {"mlp_bias": False}),
    "gemma3_text": _FamilyFormat(
        "Gemma3ForCausalLM",
        {
            "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
            "sliding_window": 4096, "sliding_window_pattern": 6,
        },
        {
            "hidden_activation": "gelu_pytorch_tanh", "mlp_bias": False, "use_bidirectional_attention": False,
            "final_logit_softcapping": None, "attn_logit_softcapping": None,
        },
    ),
}  # fmt: skip
_GEMMA: Final = "gemma3_text"
_READS_ATTENTION_BIAS: Final = ("llama", "qwen3", _GEMMA)  # Qwen2 always has its q, k, v bias; Mistral has none


def to_hf_config(
    config: LanguageModelConfig, eos_token_id: int | list[int], pad_token_id: int, bos_token_id: int | None = None
) -> dict[str, Any]:
    """The content of `config.json`. `eos_token_id` ends a text or an answer; `bos_token_id` begins one, or None."""
    if isinstance(config, TransformersConfig):
        architecture = config.values
    else:
        architecture = _write_decoder(cast(ModelConfig, config))
    return {
        **architecture,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "torch_dtype": "float32",
        "used_vocab_size": config.unpadded_vocab_size,  # ours; 0: all rows are tokens
        "used_max_seq_len": config.max_seq_len,  # ours
    }


def _write_decoder(config: ModelConfig) -> dict[str, Any]:
    heads, activation = config.attention, "hidden_activation" if config.family == _GEMMA else "hidden_act"
    return {
        "architectures": [_FAMILIES[config.family].architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": heads.n_kv_heads,
        "head_dim": heads.head_dim,
        "intermediate_size": config.mlp.dim,
        "max_position_embeddings": config.max_positions,
        **hf_rope.write(config),
        "rms_norm_eps": config.norm.eps,
        activation: config.mlp.activation,
        "attention_bias": heads.qkv_bias and config.family in _READS_ATTENTION_BIAS,
        "attention_dropout": 0.0,
        "mlp_bias": config.mlp.bias,
        **_write_windows(config),
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
    }


def _write_windows(config: ModelConfig) -> dict[str, Any]:
    """Keys of layers with a sliding window, and Gemma's scale of attention."""
    heads, sliding = config.attention, config.attention.sliding_layers
    if config.family == "mistral":
        return {"sliding_window": heads.sliding_window if sliding else None}
    written: dict[str, Any] = {"use_sliding_window": bool(sliding)}
    if config.family == _GEMMA:
        written |= {"query_pre_attn_scalar": heads.query_scalar}
    if sliding or config.family == _GEMMA:
        types = [_SLIDING if index in sliding else _FULL for index in range(config.n_layers)]
        written |= {"sliding_window": heads.sliding_window, "layer_types": types}
    if config.family.startswith("qwen"):
        written |= {"max_window_layers": min(sliding, default=config.n_layers)}
    return written


def is_decoder(values: dict[str, Any]) -> bool:
    """Whether our decoder computes this architecture; if not, transformers does."""
    kind = values.get("model_type")
    return isinstance(kind, str) and kind in _FAMILIES


def from_hf_config(values: dict[str, Any], path: str) -> LanguageModelConfig:
    """The architecture in a `config.json`. `max_seq_len` is that of a checkpoint of ours, otherwise all positions.

    Raises `model.unsupported` for what is not computed, `model.not_causal`, and `model.bad_config` for impossible
    sizes.
    """
    return read_decoder(values, path) if is_decoder(values) else transformers_config.read(values, path)


def read_decoder(values: dict[str, Any], path: str) -> ModelConfig:
    """`from_hf_config` of a family of our decoder."""
    family = cast(Family, values["model_type"])
    found = HfValues({**_FAMILIES[family].defaults, **values}, path)
    found.require({**_SUPPORTED, **_FAMILIES[family].supported, "architectures": [_FAMILIES[family].architecture]})
    positions, gemma = found.size("max_position_embeddings"), family == _GEMMA
    rope, local_rope = hf_rope.read(found, nested=gemma)
    return ModelConfig(
        family=family,
        vocab_size=found.size("vocab_size"),
        hidden_dim=found.size("hidden_size"),
        n_layers=found.size("num_hidden_layers"),
        attention=_read_attention(found, family),
        mlp=MlpConfig(
            dim=found.size("intermediate_size"),
            bias=found.flag("mlp_bias"),
            activation="gelu_pytorch_tanh" if gemma else "silu",
        ),
        norm=NormConfig(eps=found.number("rms_norm_eps"), offset=gemma, sandwich=gemma),
        rope=rope,
        local_rope=local_rope,
        embedding_scale=math.sqrt(found.size("hidden_size")) if gemma else 1.0,
        tie_embeddings=found.flag("tie_word_embeddings"),
        max_seq_len=found.size("used_max_seq_len", positions),
        max_positions=positions,
        unpadded_vocab_size=found.size("used_vocab_size") if values.get("used_vocab_size") else 0,
    )


def _read_attention(found: HfValues, family: Family) -> AttentionConfig:
    width, heads = found.size("hidden_size"), found.size("num_attention_heads")
    kv_heads = found.size("num_key_value_heads", heads)
    divides = found.values.get("head_dim") is not None or width % heads == 0
    if not divides or heads % kv_heads:
        reason = f"hidden_size: {width}, num_attention_heads: {heads}, num_key_value_heads: {kv_heads}"
        raise TraindeckError("model.bad_config", path=found.path, reason=reason)
    head_dim = found.size("head_dim", width // heads)
    if head_dim % 2:  # rotary positions need pairs
        raise found.unsupported("head_dim", head_dim)
    bias = family in _READS_ATTENTION_BIAS and found.flag("attention_bias")
    window, layers = _read_windows(found, family)
    return AttentionConfig(
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        qk_norm=family in ("qwen3", _GEMMA),
        query_scalar=found.size("query_pre_attn_scalar") if family == _GEMMA else None,
        sliding_window=window if layers else None,
        sliding_layers=layers,
    )


def _read_windows(found: HfValues, family: Family) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, and the layers that have one."""
    layers = found.size("num_hidden_layers")
    uses_window = family == _GEMMA or (family != "llama" and found.values.get("sliding_window") is not None)
    if family.startswith("qwen"):
        uses_window = uses_window and found.flag("use_sliding_window")
    if family == "mistral":
        sliding = tuple(range(layers))
    elif (types := found.values.get("layer_types")) is not None:
        if not isinstance(types, list) or len(types) != layers or not {*map(str, types)} <= {_SLIDING, _FULL}:
            raise found.unsupported("layer_types")
        sliding = tuple(index for index, kind in enumerate(types) if kind == _SLIDING)
    elif family == _GEMMA:
        pattern = found.size("sliding_window_pattern")
        sliding = tuple(index for index in range(layers) if (index + 1) % pattern)
    else:
        sliding = tuple(range(found.size("max_window_layers", layers, minimum=0), layers)) if uses_window else ()
    if not uses_window or not sliding:
        return None, ()
    return found.size("sliding_window"), sliding
