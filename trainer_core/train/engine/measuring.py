"""Compares fast paths with their reference: loss, gradients and time."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from trainer_core import __version__
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.models.adapters import has_dropout
from trainer_core.models.attention import BACKENDS, document_mask
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig
from trainer_core.progress import Reporter
from trainer_core.system import hardware
from trainer_core.train.device import Precision, uses_tf32

ROUNDS: Final = 25  # if they fit into the budget
MIN_SPEEDUP: Final = 1.03  # above the variation of such measurements
_TOKENS: Final = 1024  # computed at once by the reference
_LOSS_SCALE: Final = 2.0**16  # of the mean loss in fp16: initial scale of torch.amp.GradScaler
_BACKOFF: Final = 1 / 16

TOLERANCE: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 5e-2}
"""Largest relative difference (Euclidean norm) of loss and of each weight's gradient from the reference.

Sums in another order differ by some 1e-6 in fp32 and grow with the depth; TF32 and fp16 keep 10 bits of mantissa
(5e-4 a product), bf16 7 bits (4e-3), of which a gradient through all layers collects several.
"""

Reason = tuple[str, dict[str, Any]]  # message code and its parameters
LossOf = Callable[..., Tensor]
"""Summed loss of a batch; in fp16 it also takes `grad_scale` (see `Engine.loss`)."""


def machine_key(device: torch.device) -> str:
    """Identifies what measurements depend on: processor, torch, Traindeck."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{hardware.cpu_name()} x{hardware.usable_threads()}"
    return f"{name}, torch {torch.__version__}, traindeck {__version__}"


@contextlib.contextmanager
def preserved_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Preserve RNG states, gradients and the model's mode."""
    python, numbers, training = random.getstate(), np.random.get_state(), model.training
    gradients = [weight.grad for weight in model.parameters()]
    clear_gradients(model)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python), np.random.set_state(numbers)
        model.train(training)
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient


def clear_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None


# --- time -------------------------------------------------------------------------------------------------------


def time_alternatives(
    alternatives: Mapping[str, Callable[[], object]], device: torch.device, reporter: Reporter, budget_s: float
) -> dict[str, float]:
    """Seconds per alternative, measured in turns so that other load on the machine affects all of them alike.

    The minimum of up to `ROUNDS` rounds that fit into `budget_s` (at least one, after a warm-up): other programs only
    add time. With another program using most of a processor, the ratio of minima of 25 rounds varied by 2 %, of lower
    quartiles and medians by 4 %; with 7 rounds by 4 to 5 %. Polls the reporter.
    """
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    end = time.perf_counter() + budget_s
    for number in range(ROUNDS + 1):
        for name, once in alternatives.items():
            reporter.poll()
            seconds = _time_once(once, device)
            if number:
                times[name].append(seconds)
        if number and time.perf_counter() > end:
            break
    return {name: min(each) for name, each in times.items()}


def _time_once(once: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    since = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - since


def speedup(
    model: LanguageModel, slow: LossOf, fast: LossOf, batch: Batch, reporter: Reporter, budget_s: float
) -> float | None:
    """Speedup of one loss over the other, forward and backward. None: `slow` does not fit into the GPU's memory."""

    def forward_backward(loss: LossOf) -> None:
        clear_gradients(model)  # a CUDA graph overwrites its previous results: nothing may be added to them
        torch.autograd.backward(loss(batch))

    alternatives = {"slow": partial(forward_backward, slow), "fast": partial(forward_backward, fast)}
    try:
        seconds = time_alternatives(alternatives, batch.input_ids.device, reporter, budget_s)
    except torch.OutOfMemoryError:
        return None
    finally:
        clear_gradients(model)
    return seconds["slow"] / seconds["fast"]


# --- results ----------------------------------------------------------------------------------------------------


def tolerance(config: Config, device: torch.device, precision: Precision) -> float:
    """Largest relative difference from the reference that a run allows."""
    return TOLERANCE["tf32" if precision.name == "fp32" and uses_tf32(config, device) else precision.name]


def relative_error(found: Iterable[Tensor], reference: Iterable[Tensor]) -> float:
    """Largest relative difference of a tensor from its reference, in the Euclidean norm; inf if not finite.

    A tensor much smaller than all together (a gradient near zero) is measured against a thousandth of their norm. Holds
    one additional tensor at a time.
    """
    pairs = list(zip(found, reference, strict=True))
    sizes = [_norm(other) for _, other in pairs]
    total = math.hypot(*sizes)
    differences = [_norm(one.detach().float() - other.detach().float()) for one, other in pairs]
    errors = [one / (size + 1e-3 * total + 1e-30) for one, size in zip(differences, sizes, strict=True)]
    return max(errors, default=0.0) if all(map(math.isfinite, errors)) else math.inf


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def loss_difference(
    model: LanguageModel, loss: LossOf, reference: LossOf, batch: Batch, precision: Precision | None = None
) -> float:
    """Largest relative difference of the loss and of all gradients on one batch. Call within `preserved_state`.

    In fp16 the loss is scaled as in training, because gradients that underflow cannot be compared. The scale is lowered
    until the reference does not overflow.

    Without dropout the reference computes a few sequences at a time, so that it fits into memory wherever the
    alternative does. With dropout both draw the same numbers for the whole batch.
    """
    parts = [batch] if has_dropout(model) else batch.split_rows(max(1, _TOKENS // batch.input_ids.shape[1]))
    scale = _LOSS_SCALE / max(1, batch.loss_tokens) if precision is not None and precision.needs_scaler else None
    expected, wanted = _loss_and_gradients(model, reference, parts, scale)
    while scale is not None and scale > _BACKOFF and not all(bool(one.isfinite().all()) for one in wanted):
        scale *= _BACKOFF
        expected, wanted = _loss_and_gradients(model, reference, parts, scale)
    value, gradients = _loss_and_gradients(model, loss, [batch], scale)
    return max(relative_error([value], [expected]), relative_error(gradients, wanted))


def _loss_and_gradients(
    model: LanguageModel, loss: LossOf, parts: list[Batch], scale: float | None
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


def attention_pass(
    name: str, shape: ModelConfig, batch: Batch, dtype: torch.dtype | None
) -> Callable[[], list[Tensor]]:
    """Forward and backward of an attention backend on random queries, keys and values of the batch's shape, the same
    ones for every backend.
    """
    backend, device, attention = BACKENDS[name], batch.input_ids.device, shape.attention
    torch.manual_seed(0)

    def random_heads(heads: int) -> Tensor:
        size = (*batch.input_ids.shape, heads, attention.head_dim)  # memory layout of projections
        flat = torch.randn(size, device=device)
        return flat.to(dtype or torch.float32).transpose(1, 2).requires_grad_()

    q, k, v = (random_heads(heads) for heads in (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads))
    mask = cu_seqlens = None
    if batch.segments is not None and backend.uses_cu_seqlens:
        cu_seqlens = batch.without_padding().cu_seqlens
    elif batch.segments is not None:
        mask = document_mask(batch.segments)

    def once() -> list[Tensor]:
        out = backend.attend(q, k, v, mask=mask, cu_seqlens=cu_seqlens)
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    return once
