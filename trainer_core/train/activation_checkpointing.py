"""Activation checkpointing: activations are recomputed in backward instead of stored (Chen et al. 2016).

Non-reentrant torch.utils.checkpoint per layer. It works under torch.compile, which then decides within each layer what
to fuse.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from trainer_core.models import adapters
from trainer_core.models.language_model import LanguageModel

EXPENSIVE_OPS: Final = (  # matrix products, and the attention kernels of attention.py
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "traindeck::linear",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "bitsandbytes::gemm_4bit",
    "torch_attn::_varlen_attn",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn_3::fwd",
)


Mode = Literal["off", "selective", "full"]


def checkpoint_activations(model: LanguageModel, mode: Mode, layers: int = 0) -> None:
    """Select what the first `layers` layers (0: all) store for backward: with `full` only their input, with `selective`
    also the results of matrix products and attention. Gradients equal those of `off`, dropout included. Weights keep
    their names.

    The first layers, because backward reaches them when the activations of the others are freed.
    """
    options: dict[str, Any] = {"preserve_rng_state": adapters.has_dropout(model)}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _expensive_ops())
    model.checkpoint_layers(0 if mode == "off" else layers or model.config.n_layers, options)


def _expensive_ops() -> list[Any]:
    """Operators of `EXPENSIVE_OPS` that exist; packages register theirs when they are imported."""
    found = []
    for name in EXPENSIVE_OPS:
        space, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            found += [getattr(packet, overload) for overload in packet.overloads() if "out" not in overload]
    return found
