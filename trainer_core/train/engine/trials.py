"""Compares fast paths with the reference: loss and gradients, and time.

Call within `measuring.preserved_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS, AttentionBackend, cu_seqlens_from_segments, document_mask
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
    budget_s: float = 2.0,
) -> float | None:
    """Speedup of one loss over the other, forward and backward. None: `slow` does not fit into the GPU's memory."""

    def once(loss: LossOf) -> Callable[[], None]:
        def run() -> None:
            clear_gradients(model)  # a CUDA graph overwrites its previous results: nothing may be added to them
            torch.autograd.backward(loss(batch))

        return run

    try:
        taken = measuring.time_alternatives({"slow": once(slow), "fast": once(fast)}, device, reporter, budget_s)
    except torch.OutOfMemoryError:
        return None
    finally:
        clear_gradients(model)
    return taken["slow"] / taken["fast"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Error and seconds of one alternative. `failed` is empty on success."""

    error: float = 0.0
    seconds: float = 0.0
    failed: str = ""


def forward_backward(loss: LossOf, batch: Batch) -> Callable[[], None]:
    """Forward and backward of a micro-batch, adding to the gradients as in training."""

    def once() -> None:
        torch.autograd.backward(loss(batch))

    return once


def loss_difference(
    model: Decoder, way: LossOf, reference: LossOf, batch: Batch, precision: Precision | None = None
) -> float:
    """Largest relative difference of the loss and of all gradients on one batch.

    In fp16 the loss is scaled as in training, because gradients that underflow say nothing. The scale is lowered until
    the reference does not overflow.

    Without dropout the reference computes a few sequences at a time, so that it fits into memory wherever the
    alternative does. With dropout both draw the same numbers for the whole batch.
    """
    parts = [batch] if model.config.dropout else batch.split_rows(max(1, _TOKENS // batch.input_ids.shape[1]))
    scale = _LOSS_SCALE / max(1, batch.loss_tokens) if precision is not None and precision.needs_scaler else None
    wanted, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    while scale is not None and scale > _BACKOFF and not _all_finite(reference_gradients):
        scale *= _BACKOFF
        wanted, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    found, gradients = _loss_and_gradients(model, way, [batch], scale)
    loss, rest = measuring.relative_error([found], [wanted]), measuring.relative_error(gradients, reference_gradients)
    return max(loss, rest)


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
    for weight in model.parameters():
        weight.grad = None
    return total, gradients


def _all_finite(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


# --- attention --------------------------------------------------------------------------------------------------


def compare_attention(
    names: list[str],
    shape: ModelConfig,
    batch: Batch,
    precision: Precision,
    reporter: Reporter,
    budget_s: float = 1.0,
) -> dict[str, Comparison]:
    """Compare attention backends at the run's own shape: error against fp32 `math` on one sequence, time on all
    (`budget_s` 0: not timed).
    """
    device, dtype = batch.input_ids.device, precision.dtype or torch.float32
    results: dict[str, Comparison] = {}
    timed: dict[str, Callable[[], object]] = {}
    for name in names:
        reporter.poll()
        try:
            error = _attention_error(BACKENDS[name], shape, batch, device, dtype)
            once = _attend(BACKENDS[name], shape, batch, device, dtype)
            once()
        except Exception as failure:  # noqa: BLE001 - a kernel can refuse, or fail, in any way
            results[name] = Comparison(failed=f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"[:200])
            continue
        results[name] = Comparison(error=error)
        timed[name] = once
    if not budget_s:
        return results
    for name, taken in measuring.time_alternatives(timed, device, reporter, budget_s).items():
        results[name] = replace(results[name], seconds=taken)
    return results


def _attend(
    backend: AttentionBackend, shape: ModelConfig, batch: Batch, device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    rows, length = batch.input_ids.shape
    q, k, v = _queries(shape, rows, length, device, dtype)
    mask, spans = None, None
    if batch.segments is not None:
        mask = None if backend.uses_cu_seqlens else document_mask(batch.segments)
        spans = (batch.cu_seqlens or cu_seqlens_from_segments(batch.segments)) if backend.uses_cu_seqlens else None

    def once() -> list[Tensor]:
        out = backend.attend(q, k, v, mask=mask, cu_seqlens=spans)
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    return once


def _attention_error(
    backend: AttentionBackend, shape: ModelConfig, batch: Batch, device: torch.device, dtype: torch.dtype
) -> float:
    """On the first sequence, against the same numbers in fp32."""
    rows = batch.split_rows(1)[:1]
    torch.manual_seed(0)
    found = _attend(backend, shape, rows[0], device, dtype)()
    torch.manual_seed(0)
    wanted = _attend(BACKENDS["math"], shape, rows[0], device, torch.float32)()
    assert isinstance(found, list)
    assert isinstance(wanted, list)
    return measuring.relative_error(found, wanted)


def _queries(
    shape: ModelConfig, rows: int, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    def drawn(heads: int) -> Tensor:
        flat = torch.randn(rows, length, heads, shape.head_dim, device=device)  # memory layout of projections
        return flat.to(dtype).transpose(1, 2).requires_grad_()

    return drawn(shape.n_heads), drawn(shape.n_kv_heads), drawn(shape.n_kv_heads)
