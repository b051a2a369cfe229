"""Compares fast paths with the reference: loss and gradients, and time.

Call within `measuring.preserved_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS, cu_seqlens_from_segments, document_mask
from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.progress import Reporter
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import measuring

LossOf = Callable[..., Tensor]
"""Summed loss of a batch; in fp16 it also takes `grad_scale` (see `Engine.loss`)."""
_TOKENS: Final = 1024  # computed at once by the reference
_LOSS_SCALE: Final = 2.0**16  # of the mean loss in fp16: initial scale of torch.amp.GradScaler
_BACKOFF: Final = 1 / 16

TOLERANCE: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 5e-2}
"""Largest relative difference (Euclidean norm) of loss and of each weight's gradient from the reference.

Sums in another order differ by some 1e-6 in fp32 and grow with the depth; TF32 and fp16 keep 10 bits of mantissa
(5e-4 a product), bf16 7 bits (4e-3), of which a gradient through all layers collects several.
"""


def tolerance(config: Config, device: torch.device, precision: Precision) -> float:
    """Largest relative difference from the reference that a run allows."""
    return TOLERANCE["tf32" if precision.name == "fp32" and uses_tf32(config, device) else precision.name]


def clear_gradients(model: Decoder) -> None:
    for weight in model.parameters():
        weight.grad = None


def speedup(
    model: Decoder,
    slow: LossOf,
    fast: LossOf,
    batch: Batch,
    device: torch.device,
    reporter: Reporter,
    budget_s: float,
) -> float | None:
    """Speedup of one loss over the other, forward and backward. None: `slow` does not fit into the GPU's memory."""

    def forward_backward(loss: LossOf) -> None:
        clear_gradients(model)  # a CUDA graph overwrites its previous results: nothing may be added to them
        torch.autograd.backward(loss(batch))

    alternatives = {"slow": partial(forward_backward, slow), "fast": partial(forward_backward, fast)}
    try:
        seconds = measuring.time_alternatives(alternatives, device, reporter, budget_s)
    except torch.OutOfMemoryError:
        return None
    finally:
        clear_gradients(model)
    return seconds["slow"] / seconds["fast"]


def loss_difference(
    model: Decoder, loss: LossOf, reference: LossOf, batch: Batch, precision: Precision | None = None
) -> float:
    """Largest relative difference of the loss and of all gradients on one batch.

    In fp16 the loss is scaled as in training, because gradients that underflow cannot be compared. The scale is lowered
    until the reference does not overflow.

    Without dropout the reference computes a few sequences at a time, so that it fits into memory wherever the
    alternative does. With dropout both draw the same numbers for the whole batch.
    """
    parts = [batch] if model.config.dropout else batch.split_rows(max(1, _TOKENS // batch.input_ids.shape[1]))
    scale = _LOSS_SCALE / max(1, batch.loss_tokens) if precision is not None and precision.needs_scaler else None
    expected, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    while scale is not None and scale > _BACKOFF and not _all_finite(reference_gradients):
        scale *= _BACKOFF
        expected, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    found, gradients = _loss_and_gradients(model, loss, [batch], scale)
    loss_error = measuring.relative_error([found], [expected])
    return max(loss_error, measuring.relative_error(gradients, reference_gradients))


def _loss_and_gradients(
    model: Decoder, loss: LossOf, parts: list[Batch], scale: float | None
) -> tuple[Tensor, list[Tensor]]:
    """Gradients, scaled by `scale`, are moved out of the model, not copied."""
    torch.manual_seed(0)
    device = parts[0].input_ids.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    grad_scale = None if scale is None else torch.tensor(scale, device=device)
    for part in parts:
        value = loss(part) if grad_scale is None else loss(part, grad_scale)
        total += value.detach()
        torch.autograd.backward(value, grad_scale)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    clear_gradients(model)
    return total, gradients


def _all_finite(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


# --- attention --------------------------------------------------------------------------------------------------


def attention_error(name: str, shape: ModelConfig, batch: Batch, precision: Precision) -> float:
    """Error of an attention backend on the first sequence against fp32 `math`. Raises whatever the backend raises, also
    on the whole batch.
    """
    first = batch.split_rows(1)[0]
    torch.manual_seed(0)
    found = attention_pass(name, shape, first, precision.dtype)()
    torch.manual_seed(0)
    reference = attention_pass("math", shape, first, None)()
    attention_pass(name, shape, batch, precision.dtype)()
    return measuring.relative_error(found, reference)


def attention_pass(
    name: str, shape: ModelConfig, batch: Batch, dtype: torch.dtype | None
) -> Callable[[], list[Tensor]]:
    """Forward and backward of a backend on random queries, keys and values of the batch's shape."""
    backend, device = BACKENDS[name], batch.input_ids.device

    def random(heads: int) -> Tensor:
        flat = torch.randn(*batch.input_ids.shape, heads, shape.head_dim, device=device)  # memory layout of projections
        return flat.to(dtype or torch.float32).transpose(1, 2).requires_grad_()

    q, k, v = random(shape.n_heads), random(shape.n_kv_heads), random(shape.n_kv_heads)
    mask = cu_seqlens = None
    if batch.segments is not None and backend.uses_cu_seqlens:
        cu_seqlens = batch.cu_seqlens or cu_seqlens_from_segments(batch.segments)
    elif batch.segments is not None:
        mask = document_mask(batch.segments)

    def once() -> list[Tensor]:
        out = backend.attend(q, k, v, mask=mask, cu_seqlens=cu_seqlens)
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    return once
