"""Each fast path against the reference: does it give the same loss and gradients, and how long does it take?

Nothing here decides; `build` does. All of it runs within `measuring.undisturbed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from trainer_core.data.batches import Batch
from trainer_core.model.attention import BACKENDS, Backend, document_mask, spans_of
from trainer_core.model.decoder import Decoder, ModelConfig
from trainer_core.report import Reporter
from trainer_core.train.device import Precision
from trainer_core.train.engine import measuring

LossOf = Callable[..., Tensor]
"""Summed loss of a batch; in fp16 it also takes `grad_scale` (see `Engine.loss`)."""
_TOKENS: Final = 1024  # that the reference computes at once
_LOSS_SCALE: Final = 2.0**16  # of the mean loss in fp16: the initial scale of torch.amp.GradScaler
_BACKOFF: Final = 1 / 16

TOLERANCE: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 5e-2}
"""Largest relative difference (Euclidean norm) of loss and of each weight's gradient from the reference.

Sums in another order differ by some 1e-6 in fp32 and grow with the depth; TF32 and fp16 keep 10 bits of mantissa
(5e-4 a product), bf16 7 bits (4e-3), of which a gradient through all layers collects several.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Of one way: difference from the reference, and seconds. `failed` is empty where it worked."""

    error: float = 0.0
    seconds: float = 0.0
    failed: str = ""


def forward_backward(loss: LossOf, batch: Batch) -> Callable[[], None]:
    """What is timed: one micro-batch, with gradients added as in training."""

    def once() -> None:
        torch.autograd.backward(loss(batch))

    return once


def loss_difference(
    model: Decoder, way: LossOf, reference: LossOf, batch: Batch, precision: Precision | None = None
) -> float:
    """Largest relative difference of the loss and of all gradients on one batch.

    In fp16 the loss is scaled as in training: differences of gradients that underflow say nothing about the way. The
    scale is lowered until the reference does not overflow.

    Without dropout the reference takes a few sequences at a time, so that it fits into memory wherever the way that
    is judged does. With dropout both draw the same numbers for the whole batch.
    """
    parts = [batch] if model.config.dropout else batch.rows(max(1, _TOKENS // batch.input_ids.shape[1]))
    scale = _LOSS_SCALE / max(1, batch.tokens) if precision is not None and precision.needs_scaler else None
    wanted, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    while scale is not None and scale > _BACKOFF and not _all_finite(reference_gradients):
        scale *= _BACKOFF
        wanted, reference_gradients = _loss_and_gradients(model, reference, parts, scale)
    found, gradients = _loss_and_gradients(model, way, [batch], scale)
    loss, rest = measuring.difference([found], [wanted]), measuring.difference(gradients, reference_gradients)
    return max(loss, rest)


def _loss_and_gradients(
    model: Decoder, loss: LossOf, parts: list[Batch], scale: float | None
) -> tuple[Tensor, list[Tensor]]:
    """The gradients, times `scale`, are moved out of the model, not copied."""
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


def attention(
    names: list[str],
    shape: ModelConfig,
    batch: Batch,
    precision: Precision,
    reporter: Reporter,
    budget_s: float = 1.0,
) -> dict[str, Result]:
    """Each backend at the run's own shape: error against fp32 `math` on one sequence, time with all of them
    (`budget_s` 0: none is timed)."""
    device, dtype = batch.input_ids.device, precision.dtype or torch.float32
    results: dict[str, Result] = {}
    timed: dict[str, Callable[[], object]] = {}
    for name in names:
        reporter.poll()
        try:
            error = _attention_error(BACKENDS[name], shape, batch, device, dtype)
            once = _attend(BACKENDS[name], shape, batch, device, dtype)
            once()
        except Exception as failure:  # noqa: BLE001 - a kernel can refuse, or fail, in any way
            results[name] = Result(failed=f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"[:200])
            continue
        results[name] = Result(error=error)
        timed[name] = once
    if not budget_s:
        return results
    for name, taken in measuring.seconds(timed, device, reporter, budget_s).items():
        results[name] = replace(results[name], seconds=taken)
    return results


def _attend(
    backend: Backend, shape: ModelConfig, batch: Batch, device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    rows, length = batch.input_ids.shape
    q, k, v = _queries(shape, rows, length, device, dtype)
    mask, spans = None, None
    if batch.segments is not None:
        mask = None if backend.by_spans else document_mask(batch.segments)
        spans = (batch.spans or spans_of(batch.segments)) if backend.by_spans else None

    def once() -> list[Tensor]:
        out = backend.attend(q, k, v, mask=mask, spans=spans)
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    return once


def _attention_error(
    backend: Backend, shape: ModelConfig, batch: Batch, device: torch.device, dtype: torch.dtype
) -> float:
    """On the first sequence, against the same numbers in fp32."""
    rows = batch.rows(1)[:1]
    torch.manual_seed(0)
    found = _attend(backend, shape, rows[0], device, dtype)()
    torch.manual_seed(0)
    wanted = _attend(BACKENDS["math"], shape, rows[0], device, torch.float32)()
    assert isinstance(found, list)
    assert isinstance(wanted, list)
    return measuring.difference(found, wanted)


def _queries(
    shape: ModelConfig, rows: int, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    def drawn(heads: int) -> Tensor:
        flat = torch.randn(rows, length, heads, shape.head_dim, device=device)  # laid out as projections give them
        return flat.to(dtype).transpose(1, 2).requires_grad_()

    return drawn(shape.n_heads), drawn(shape.n_kv_heads), drawn(shape.n_kv_heads)
