"""How much arithmetic a model needs: by formula, for MFU, and counted layer by layer.

Model FLOPs utilisation (MFU) is the share of a card's peak that training uses: FLOPs per token * tokens/s / peak.
FLOPs per token = 6 N + 6 L T D: a multiply and an add per weight in forward and two of each in backward (N: weights
that multiply; an embedding look-up does not, the head does), and causal attention, half of 12 L T D (PaLM,
Chowdhery et al. 2022, appendix B). L layers, D width, T the length of the documents as their positions see it: their
lengths squared and added up, by all positions. Padding counts as tokens here: it is computed. What is computed twice
to save memory does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from trainer_core.data.batches import Batch
from trainer_core.model.attention import document_mask, sdpa
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import FlopsProfile, FlopsRow
from trainer_core.train.checkpoint import generators, set_generators
from trainer_core.train.device import Precision
from trainer_core.train.loss import token_loss
from trainer_core.train.peaks import peak


def flops_per_token(model: Decoder, length: float) -> float:
    """Floating-point operations of forward and backward for one token of a document of so many positions."""
    config = model.config
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.hidden_dim
    multiplying = model.count_parameters() - embedding
    return 6.0 * multiplying + 6.0 * config.n_layers * length * config.hidden_dim


def peak_flops(device_name: str, precision: str) -> float | None:
    """The card's dense rate in FLOP/s at `bf16`, `fp16` or `tf32`; None for unknown cards and for fp32."""
    found = peak(device_name, precision)
    return found.flops if found else None


def profile(model: Decoder, batch: Batch, precision: Precision, step: int) -> FlopsProfile:
    """Count forward and backward of `batch` (on the model's device) by layer, on the eager model.

    One sequence is computed and counted for all: their arithmetic is the same. Attention is counted as torch does,
    with the half that causal attention leaves out, so the total is a little more than `formula`. Nothing is left
    behind: no gradients, and generators are as they were.
    """
    rows, positions = batch.input_ids.shape
    before = generators(model)
    try:
        with _reference_attention(model):
            forward, both = _count(model, _first(batch), precision)
    finally:
        set_generators(model, before)
    total = both.get("Global", 0)
    return FlopsProfile(
        step=step,
        tokens=rows * positions,
        total=float(rows * total),
        formula=flops_per_token(model, batch.attended / (rows * positions)) * rows * positions,
        rows=[
            FlopsRow(
                module=name,
                forward=float(rows * forward.get(key, 0)),
                backward=float(rows * (both.get(key, 0) - forward.get(key, 0))),
                share=both.get(key, 0) / max(1, total),
            )
            for name, key in _parts(model)
        ],
    )


def _parts(model: Decoder) -> list[tuple[str, str]]:
    """The modules that are told of, and what the counter calls them."""
    names = [f"model.layers.{n}.{part}" for n in range(model.config.n_layers) for part in ("self_attn", "mlp")]
    return [(name, f"{type(model).__name__}.{name}") for name in (*names, "lm_head")]


def _count(model: Decoder, batch: Batch, precision: Precision) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs by module: of forward, and of forward and backward."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=_FOR_CPU) as counter:
        with precision.autocast():
            # The model is called as a whole: the counter names its parts from the outermost module that it sees.
            mask = None if batch.segments is None else document_mask(batch.segments)
            loss = token_loss(model(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask), batch.labels)
        forward = _sums(counter.get_flop_counts())
        torch.autograd.grad(loss, weights, allow_unused=True)
    return forward, _sums(counter.get_flop_counts())


def _sums(counts: Mapping[str, Mapping[Any, int]]) -> dict[str, int]:
    return {name: sum(by_operation.values()) for name, by_operation in counts.items()}


def _first(batch: Batch) -> Batch:
    """The first sequence of a batch."""

    def first(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:1]

    return replace(
        batch,
        input_ids=batch.input_ids[:1],
        labels=batch.labels[:1],
        segments=first(batch.segments),
        positions=first(batch.positions),
        spans=None,
    )


@contextlib.contextmanager
def _reference_attention(model: Decoder) -> Iterator[None]:
    """The counter knows torch's own kernels alone."""
    layers: list[Any] = list(model.model.layers)
    before = [layer.self_attn.attend for layer in layers]
    model.set_attention(sdpa)
    try:
        yield
    finally:
        for layer, attend in zip(layers, before, strict=True):
            layer.self_attn.attend = attend


def _attention_forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))  # type: ignore[no-untyped-call]


_FOR_CPU: Final = {  # the one kernel that torch 2.13 does not count; private, so it may be missing
    getattr(torch.ops.aten, name): count
    for name, count in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention_forward),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    )
    if hasattr(torch.ops.aten, name)
}
