"""Loss of a batch: the reference, and in chunks that never hold the logits of all tokens at once.

Shapes: B batch, T sequence, R rows (the B * T positions, or the labeled ones), D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.models.attention import document_mask
from trainer_core.models.cpu_ops import add_weight_grad, linear, linear_input_grad, linear_weight_grad
from trainer_core.models.language_model import LanguageModel


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Summed cross-entropy in nats over labels other than `IGNORE_INDEX`, in fp32."""
    flat = logits_BTV.float().flatten(0, 1)
    return F.cross_entropy(flat, labels_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


def linear_token_loss(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    labels_BT: Tensor,
    chunk: int,
    counted: int | None = None,
    grad_scale: Tensor | None = None,
) -> Tensor:
    """`token_loss` of `hidden @ weight.T`, holding `chunk` rows of logits at a time.

    `counted`: number of labels other than `IGNORE_INDEX` (`Batch.loss_tokens`). If it is known, or on a CPU, other rows
    are removed before the head; a compiled model, whose shapes are static, computes them with weight zero.

    `grad_scale` (0-dim fp32 on the device) is the expected gradient of the result, required for fp16. Gradients are
    multiplied by it before they are rounded to the precision of `hidden` and `weight` under autocast: unscaled, most of
    a trained model's are below the smallest fp16 number. Any other gradient of the result still gives correct
    gradients, with the range of `grad_scale`.
    """
    hidden_RD, labels_R = hidden_BTD.flatten(0, -2), labels_BT.flatten()
    counts_R: Tensor | None = labels_R != IGNORE_INDEX
    if not torch.compiler.is_compiling() and (counted is not None or labels_R.device.type == "cpu"):
        if counted != len(labels_R):
            rows = labeled_rows(labels_R, counted)
            hidden_RD, labels_R = hidden_RD.index_select(0, rows), labels_R.index_select(0, rows)
        counts_R = None
    learning = torch.is_grad_enabled() and (hidden_RD.requires_grad or weight_VD.requires_grad)
    learning_head = learning and weight_VD.requires_grad
    summed: Tensor = _LinearTokenLoss.apply(  # type: ignore[no-untyped-call]
        hidden_RD, weight_VD, labels_R, counts_R, chunk, learning, learning_head, grad_scale
    )
    return summed


def labeled_rows(labels_R: Tensor, counted: int | None) -> Tensor:
    """Indices of the labels other than `IGNORE_INDEX`; `counted`: their number, if it is known."""
    return nonzero(labels_R != IGNORE_INDEX, counted)


def nonzero(mask_R: Tensor, count: int | None) -> Tensor:
    """Indices of the true elements; with their `count`, without synchronizing with a GPU."""
    if count is None or not mask_R.is_cuda:
        return mask_R.nonzero().flatten()
    return torch.nonzero_static(mask_R, size=count).flatten()


class _LinearTokenLoss(torch.autograd.Function):
    """Summed cross-entropy of the rows. Gradients are computed in the forward pass, while a chunk's logits exist: they
    are linear in the later gradient of the result, a scalar, so each product is computed once. They are stored
    multiplied by `grad_scale`; `backward` multiplies by the quotient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        weight_VD: Tensor,
        labels_R: Tensor,
        counts_R: Tensor | None,
        chunk: int,
        learning: bool,
        learning_head: bool,
        grad_scale: Tensor | None,
    ) -> Tensor:
        kind = hidden_RD.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
        with torch.autocast(kind, enabled=False):
            summed, hidden_grad, weight_grad = _by_parts(
                hidden_RD.to(dtype), weight_VD.to(dtype), labels_R, counts_R, chunk, learning, learning_head, grad_scale
            )
            if hidden_grad is not None:
                weight_grad = None if weight_grad is None else weight_grad.to(weight_VD.dtype)
                ctx.save_for_backward(hidden_grad.to(hidden_RD.dtype), weight_grad, grad_scale)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, grad_scale = ctx.saved_tensors
        factor = outer[0] if grad_scale is None else outer[0] / grad_scale
        if torch.compiler.is_compiling():
            hidden_grad = hidden_grad * factor
            weight_grad = None if weight_grad is None else weight_grad * factor
        else:  # In place, to avoid another copy of the weight's size. A second backward is refused.
            hidden_grad = hidden_grad.mul_(factor)
            weight_grad = None if weight_grad is None else weight_grad.mul_(factor)
        return hidden_grad, weight_grad, None, None, None, None, None, None


def _by_parts(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    labels_R: Tensor,
    counts_R: Tensor | None,
    chunk: int,
    learning: bool,
    learning_head: bool,
    grad_scale: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss in fp32 and the gradients of hidden (if `learning`; in chunks) and weight (if `learning_head`; fp32),
    multiplied by `grad_scale`. A frozen head has no gradient.
    """
    summed = torch.zeros((), dtype=torch.float32, device=hidden_RD.device)
    hidden_grads: list[Tensor] = []
    weight_grad: Tensor | None = None
    for number in range(-(-labels_R.shape[0] // chunk)):
        part = slice(number * chunk, (number + 1) * chunk)
        hidden, labels = hidden_RD[part], labels_R[part].unsqueeze(1)
        counts = None if counts_R is None else counts_R[part].unsqueeze(1)
        known = labels if counts is None else labels.where(counts, 0)
        lost, errors = _losses_and_errors(linear(hidden, weight_VD).float(), known)
        if counts is not None:
            lost, errors = lost.where(counts, 0.0), errors * counts
        summed = summed + lost.sum()
        if not learning:
            continue
        if grad_scale is not None:
            errors = errors.mul_(grad_scale)
        errors = errors.to(weight_VD.dtype)
        hidden_grads.append(linear_input_grad(errors, weight_VD))
        if not learning_head:
            continue
        if weight_grad is None:
            weight_grad = linear_weight_grad(errors, hidden).float()
        elif torch.compiler.is_compiling():
            weight_grad = weight_grad + linear_weight_grad(errors, hidden)
        else:
            add_weight_grad(weight_grad, errors, hidden)
    if not learning:
        return summed, None, None
    if not hidden_grads:  # no labeled rows
        return summed, torch.zeros_like(hidden_RD), torch.zeros_like(weight_VD) if learning_head else None
    return summed, torch.cat(hidden_grads), weight_grad


def _losses_and_errors(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row (R, 1) and gradient of its logits: softmax minus one at the label. Overwrites the logits, and
    computes exponentials, the largest cost, once.
    """
    if torch.compiler.is_compiling():  # one kernel; writing single elements would split it
        scores = torch.log_softmax(logits, dim=1)
        errors = scores.exp() - (torch.arange(scores.shape[1], device=scores.device) == labels).float()
        return -scores.gather(1, labels), errors
    highest = logits.amax(1, keepdim=True)
    at_label = logits.gather(1, labels) - highest
    exponentials = logits.sub_(highest).exp_()
    total = exponentials.sum(1, keepdim=True)
    errors = exponentials.div_(total)
    errors.scatter_(1, labels, errors.gather(1, labels) - 1.0)
    return total.log() - at_label, errors


def batch_loss(
    model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False, grad_scale: Tensor | None = None
) -> Tensor:
    """`token_loss` of a batch on the model's device. Tokens do not attend to other documents if the batch has segments.

    `chunk`: rows of logits held at once; 0: all, the reference. `varlen`: leave out padding, and pass cumulative
    sequence lengths instead of a mask, for backends with `AttentionBackend.uses_cu_seqlens`. `grad_scale`: see
    `linear_token_loss`.
    """
    if varlen and batch.row_documents:
        batch = batch.without_padding()
    mask = None if batch.segments is None else document_mask(batch.segments)
    spans = batch.cu_seqlens if varlen else None
    hidden = model.forward_hidden(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask, cu_seqlens=spans)
    if chunk and model.has_plain_head:
        return linear_token_loss(hidden, model.head.weight, batch.labels, chunk, batch.loss_tokens, grad_scale)
    return token_loss(model.logits(hidden), batch.labels)
