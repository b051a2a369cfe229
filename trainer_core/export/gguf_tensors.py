"""Weights of our decoder as tensors of a GGUF file: names, layout and types, as llama.cpp expects them.

Sources: `convert_hf_to_gguf.py` (names, layout) and `src/llama-quant.cpp` (types) of llama.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from trainer_core.base_model.weights import is_finite
from trainer_core.export.job import Quantization
from trainer_core.messages import TraindeckError
from trainer_core.models.model_config import Family, ModelConfig
from trainer_core.models.rotary import rope_factors

ARCHITECTURES: Final[dict[Family, str]] = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3",
}  # fmt: skip
ROPE_FACTORS: Final = "rope_freqs.weight"
_GEMMA_27B_LAYERS: Final = 62  # by which llama.cpp recognizes the size whose attention has another scale
_TYPES: Final[dict[Quantization, GGMLQuantizationType]] = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_k_m": GGMLQuantizationType.Q4_K,
    "q5_k_m": GGMLQuantizationType.Q5_K,
    "q6_k": GGMLQuantizationType.Q6_K,
}
FILE_TYPES: Final[dict[Quantization, gguf.LlamaFileType]] = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_k_m": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k_m": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
}
_FALLBACKS: Final = {  # for rows that are not a multiple of 256
    GGMLQuantizationType.Q4_K: GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_K: GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q6_K: GGMLQuantizationType.Q8_0,
}
_K_TYPES: Final = tuple(_FALLBACKS)
_PART_WEIGHTS: Final = 1 << 20  # that a thread quantizes at a time
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)\.weight")


# --- names and layout --------------------------------------------------------------------------------------


def tensor_names(config: ModelConfig) -> Callable[[str], str]:
    """Returns a function from names in safetensors files to names in GGUF files."""
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[config.family])
    names = gguf.get_tensor_name_map(architecture, config.n_layers)

    def translate(name: str) -> str:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name  # the decoder has no other weights
        return found

    return translate


def to_gguf_layout(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """A weight, by its name in safetensors files, as llama.cpp computes with it."""
    heads = config.attention
    if ARCHITECTURES[config.family] == "llama" and ".q_proj." in name:
        return permute_rows(weight, heads.n_heads)
    if ARCHITECTURES[config.family] == "llama" and ".k_proj." in name:
        return permute_rows(weight, heads.n_kv_heads)
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return weight[: config.n_tokens]  # without padding rows, which would be sampled
    if config.norm.offset and name.endswith("norm.weight"):
        weight = weight + 1
    if heads.query_scalar is not None and name.endswith("q_norm.weight"):
        return weight * math.sqrt(_gemma_scalar(config) / heads.query_scalar)
    return weight


def permute_rows(weight: Tensor, heads: int) -> Tensor:
    """Rows of a q or k projection from halves of a head (Hugging Face) to neighbouring pairs (llama.cpp's `llama`)."""
    pairs = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _gemma_scalar(config: ModelConfig) -> float:
    """What llama.cpp divides the scores of Gemma 3 by the square root of."""
    if config.n_layers == _GEMMA_27B_LAYERS:
        return config.hidden_dim / config.attention.n_heads
    return config.attention.head_dim


def rope_factors_tensor(config: ModelConfig) -> Tensor | None:
    """Divisors of the rotary frequencies, where llama.cpp has no formula for the scaling; otherwise None."""
    if config.rope.scaling is None or config.rope.scaling.kind != "llama3":
        return None
    return rope_factors(config.rope, config.attention.head_dim)


# --- types -------------------------------------------------------------------------------------------------


def tensor_type(
    name: str, shape: tuple[int, ...], quantization: Quantization, config: ModelConfig
) -> GGMLQuantizationType:
    """Type of a tensor by its name in GGUF files, as `llama-quantize` chooses it. Vectors stay in F32."""
    if len(shape) < 2:
        return GGMLQuantizationType.F32
    kind = _TYPES[quantization]
    if kind in _K_TYPES and _has_more_bits(name, quantization, config):
        kind = GGMLQuantizationType.Q6_K
    return _fit(kind, shape[-1])


def _has_more_bits(name: str, quantization: Quantization, config: ModelConfig) -> bool:
    """Whether a mixture stores this tensor in Q6_K: the output layer, and of some layers `attn_v` and `ffn_down`."""
    if name == ("token_embd.weight" if config.tie_embeddings else "output.weight"):
        return True
    layer = _LAYER.fullmatch(name)
    if layer is None or layer[2] not in ("attn_v", "ffn_down") or not quantization.endswith("_m"):
        return False
    index, eighth = int(layer[1]), config.n_layers // 8
    return index < eighth or index >= 7 * config.n_layers // 8 or (index - eighth) % 3 == 2


def _fit(kind: GGMLQuantizationType, columns: int) -> GGMLQuantizationType:
    """The type itself, or a wider one whose blocks divide the rows."""
    if columns % gguf.GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    fallback = _FALLBACKS.get(kind, GGMLQuantizationType.F16)
    return fallback if fallback is GGMLQuantizationType.F16 else _fit(fallback, columns)


def encode(name: str, weight: Tensor, kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """A weight in fp32 as the content of a tensor: numbers, or bytes by row. Raises `export.too_large`."""
    if kind is GGMLQuantizationType.F16:
        half = weight.half()
        if not is_finite(half):
            raise TraindeckError("export.too_large", name=name)
        return half.numpy()
    if kind is GGMLQuantizationType.BF16:
        return weight.bfloat16().view(torch.int16).numpy().view(np.uint8)
    values = weight.contiguous().numpy()
    return _quantize_rows(values, kind) if kind in _K_TYPES else gguf.quantize(values, kind)


def _quantize_rows(values: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """K-quants on all cores: libgguf takes seconds for a hundred million weights, without holding the GIL."""
    import libgguf

    parts = np.array_split(values, max(1, values.size // _PART_WEIGHTS))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return np.concatenate([*pool.map(lambda part: libgguf.quantize_rows(part, kind), parts)])
