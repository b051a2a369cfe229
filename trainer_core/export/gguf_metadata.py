"""Architecture of our decoder as metadata of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What llama.cpp does not compute is refused, or limits
the context in which the file is exact.
"""

from __future__ import annotations

import math

import gguf

from trainer_core.messages import TraindeckError
from trainer_core.models.model_config import ModelConfig, RopeScaling
from trainer_core.progress import Reporter


def add_architecture(writer: gguf.GGUFWriter, config: ModelConfig, reporter: Reporter) -> None:
    """Raises `export.not_computed`; warns with `export.shorter_context`."""
    heads = config.attention
    _require_supported(config)
    writer.add_context_length(_context_length(config, reporter))
    writer.add_embedding_length(config.hidden_dim)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.mlp.dim)
    writer.add_head_count(heads.n_heads)
    writer.add_head_count_kv(heads.n_kv_heads)
    writer.add_key_length(heads.head_dim)
    writer.add_value_length(heads.head_dim)
    writer.add_layer_norm_rms_eps(config.norm.eps)
    writer.add_vocab_size(config.n_tokens)
    writer.add_rope_dimension_count(heads.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    if config.rope.scaling is not None:
        _add_scaling(writer, config.rope.scaling)
    if config.local_rope is not None and heads.sliding_window is not None:  # Gemma 3
        writer.add_rope_freq_base_swa(config.local_rope.theta)
        writer.add_sliding_window(heads.sliding_window)
        writer.add_sliding_window_pattern([layer in heads.sliding_layers for layer in range(config.n_layers)])


def _add_scaling(writer: gguf.GGUFWriter, scaling: RopeScaling) -> None:
    """Scaling with a formula in llama.cpp. Llama 3's is a tensor of factors."""
    if scaling.kind == "llama3":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
    writer.add_rope_scaling_factor(scaling.factor)
    if scaling.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_positions)
        writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)
        # llama.cpp multiplies by its own factor of cosine and sine.
        writer.add_rope_scaling_attn_factors(scaling.attention_factor / (1 + 0.1 * math.log(scaling.factor)))


def _context_length(config: ModelConfig, reporter: Reporter) -> int:
    """Positions up to which llama.cpp computes the same: of these families it applies windows in Gemma 3 only."""
    window = config.attention.sliding_window
    if config.family == "gemma3_text" or window is None or window >= config.max_positions:
        return config.max_positions
    reporter.warn("export.shorter_context", window=window, positions=config.max_positions)
    return window


def _require_supported(config: ModelConfig) -> None:
    scaling, local = config.rope.scaling, config.local_rope
    if scaling is not None and not scaling.truncate:
        raise TraindeckError("export.not_computed", what="rope_scaling.truncate = false")
    if local is not None and local.scaling is not None:
        raise TraindeckError("export.not_computed", what="rope_scaling of layers with a sliding window")
    if config.attention.output_bias and config.family not in ("llama", "mistral"):
        raise TraindeckError("export.not_computed", what="attention_bias = true")
