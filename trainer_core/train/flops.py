"""Model FLOPs: by formula, for MFU, and counted by layer.

Model FLOPs utilization (MFU) = FLOPs per token * tokens/s / peak FLOP/s. FLOPs per token = 6 N + 6 L T D: two per
weight in forward and four in backward (N: weights that multiply, including the head, without embeddings), plus causal
attention, half of 12 L T D (PaLM, Chowdhery et al. 2022, appendix B). L layers, D width of all heads, T the mean
document length weighted by positions; in a layer with a sliding window of W < T positions, 2 W - W² / T replaces T.
Of models that transformers computes, T is the document length, D the width of the model, and all experts count.
Frozen weights count 4: they have no gradient of their own. Padding does not count as tokens. Activation
recomputation does not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from trainer_core.data.batch import Batch
from trainer_core.models.adapters import count_trainable
from trainer_core.models.attention import document_mask, sdpa
from trainer_core.models.decoder import Decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig
from trainer_core.protocol import FlopsProfile, FlopsRow
from trainer_core.train.checkpoint import rng_states, set_rng_states
from trainer_core.train.device import Precision
from trainer_core.train.loss import token_loss


def flops_per_token(model: LanguageModel, length: float) -> float:
    """FLOPs of forward and backward per token of a document with `length` tokens."""
    config = model.config
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.hidden_dim
    trained = count_trainable(model)
    multiplying = 6.0 * trained + 4.0 * (model.count_parameters() - trained)
    embedding *= 6 if model.embedding.weight.requires_grad else 4
    if not isinstance(config, ModelConfig):
        return multiplying - embedding + 6.0 * length * config.n_layers * config.hidden_dim
    heads, lengths = config.attention, [length] * config.n_layers
    for layer in heads.sliding_layers:
        window = min(length, heads.sliding_window or length)
        lengths[layer] = 2 * window - window**2 / length
    return multiplying - embedding + 6.0 * sum(lengths) * heads.n_heads * heads.head_dim


def profile(model: LanguageModel, batch: Batch, precision: Precision, step: int) -> FlopsProfile:
    """Count FLOPs of forward and backward of `batch` (on the model's device) by layer, on the eager model.

    Computes one sequence and scales. Attention is counted as torch does, including the masked half, so the total is
    slightly higher than the formula's. Gradients and RNG states are preserved.
    """
    rows, positions = batch.input_ids.shape
    before = rng_states(model)
    attend = sdpa
    if isinstance(model, Decoder):
        attend = model.model.layers[0].self_attn.attend  # type: ignore[union-attr,assignment]
    model.set_attention(sdpa)  # torch's own kernels, the only ones that the counter knows
    try:
        forward, both = _count(model, batch.split_rows(1)[0], precision)
    finally:
        set_rng_states(model, before)
        model.set_attention(attend)
    total = both.get("Global", 0)
    return FlopsProfile(
        step=step,
        tokens=rows * positions,
        total=float(rows * total),
        formula=flops_per_token(model, batch.attention_pairs / (rows * positions)) * rows * positions,
        rows=[
            FlopsRow(
                module=name,
                forward=float(rows * forward.get(key, 0)),
                backward=float(rows * (both.get(key, 0) - forward.get(key, 0))),
                share=both.get(key, 0) / max(1, total),
            )
            for name, key in _parts(model)
            if forward.get(key)
        ],
    )


def _parts(model: LanguageModel) -> list[tuple[str, str]]:
    """Modules to report, with the counter's names for them."""
    layers = [name for name, found in model.named_modules() if isinstance(found, nn.ModuleList)]
    parts = rf"({'|'.join(map(re.escape, layers))})\.\d+\.\w+"
    names = [name for name, found in model.named_modules() if found is model.head or re.fullmatch(parts, name)]
    return [(name, f"{type(model).__name__}.{name}") for name in names]


def _count(model: LanguageModel, batch: Batch, precision: Precision) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs by module: forward, and forward with backward."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    mapping: dict[Any, Callable[..., int]] = {**_FOR_CPU, torch.ops.traindeck.linear: _linear}
    if hasattr(torch.ops.bitsandbytes, "gemm_4bit"):  # imported for quantized weights
        mapping[torch.ops.bitsandbytes.gemm_4bit] = _gemm_4bit
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        with precision.autocast():
            # Call the whole model: the counter names modules from the outermost module that it sees.
            mask = None if batch.segments is None else document_mask(batch.segments)
            loss = token_loss(model(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask), batch.labels)
        forward = _sums(counter.get_flop_counts())
        torch.autograd.grad(loss, weights, allow_unused=True)
    return forward, _sums(counter.get_flop_counts())


def _sums(counts: Mapping[str, Mapping[Any, int]]) -> dict[str, int]:
    return {name: sum(by_operation.values()) for name, by_operation in counts.items()}


def _attention_forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))  # type: ignore[no-untyped-call]


def _linear(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(x) * weight[0])


def _gemm_4bit(hidden: Any, weight: Any, shape: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(hidden) * shape[0])


_FOR_CPU: Final = {  # the one kernel that torch 2.13 does not count; private, so it may be missing
    getattr(torch.ops.aten, name): count
    for name, count in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention_forward),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    )
    if hasattr(torch.ops.aten, name)
}
