"""Log-probabilities of tokens with gradients, in chunks that never hold the logits of all tokens at once.

For losses that are not a sum over tokens, so that the gradient of each log-probability is known only when all are.
`loss.linear_token_loss` computes the summed loss faster.

Shapes: R rows (labeled positions), D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.models.cpu_ops import add_weight_grad, linear, linear_input_grad

_FP16_SCALE: Final = 1024.0  # of stored gradients: most of a trained model's are below the smallest fp16 number


def linear_token_logps(hidden_RD: Tensor, weight_VD: Tensor, labels_R: Tensor, chunk: int) -> Tensor:
    """Log-probabilities (R,) in fp32 of `labels_R` under the logits `hidden @ weight.T`.

    Holds `chunk` rows of logits at a time. A frozen head costs two products, both in the forward pass; a trained one
    costs four, since its logits are computed again and it has a gradient.
    """
    learning = torch.is_grad_enabled() and (hidden_RD.requires_grad or weight_VD.requires_grad)
    logps: Tensor = _LinearTokenLogps.apply(hidden_RD, weight_VD, labels_R, chunk, learning)  # type: ignore[no-untyped-call]
    return logps


class _LinearTokenLogps(torch.autograd.Function):
    """With a frozen head, the gradient of each row's log-probability is computed in the forward pass, while its logits
    exist; `backward` only scales it. The gradient of a trained head mixes rows, so `backward` repeats the logits.
    """

    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, weight_VD: Tensor, labels_R: Tensor, chunk: int, learning: bool) -> Tensor:
        kind = hidden_RD.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
        ctx.chunk, ctx.dtype, ctx.scale = chunk, dtype, _FP16_SCALE if dtype == torch.float16 else 1.0
        repeats = learning and weight_VD.requires_grad
        logps, grads = [], []
        with torch.autocast(kind, enabled=False):
            weight = weight_VD.to(dtype)
            for hidden, labels in zip(*(torch.split(one, chunk) for one in (hidden_RD, labels_R)), strict=True):
                logits = linear(hidden.to(dtype), weight).float()
                if repeats or not learning:
                    logps.append(-F.cross_entropy(logits, labels, reduction="none"))
                else:
                    logp, errors = _logps_and_errors(logits, labels[:, None])
                    logps.append(logp)
                    grads.append(linear_input_grad(errors.mul_(ctx.scale).to(dtype), weight))
        if repeats:
            ctx.save_for_backward(hidden_RD, weight_VD, labels_R)
        elif learning:
            ctx.save_for_backward(torch.cat(grads) if grads else torch.zeros_like(hidden_RD))
            ctx.hidden_dtype = hidden_RD.dtype
        return torch.cat(logps) if logps else hidden_RD.new_zeros(0, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        if len(ctx.saved_tensors) == 1:
            (grad_RD,) = ctx.saved_tensors
            return (grad_RD * (outer[0] / ctx.scale)[:, None]).to(ctx.hidden_dtype), None, None, None, None
        hidden_RD, weight_VD, labels_R = ctx.saved_tensors
        weight, weight_grad = weight_VD.to(ctx.dtype), torch.zeros_like(weight_VD, dtype=torch.float32)
        grads = []
        parts = (torch.split(one, ctx.chunk) for one in (hidden_RD.to(ctx.dtype), labels_R, outer[0]))
        with torch.autocast(hidden_RD.device.type, enabled=False):
            for hidden, labels, grad in zip(*parts, strict=True):
                _, errors = _logps_and_errors(linear(hidden, weight).float(), labels[:, None])
                errors = errors.mul_(grad[:, None]).to(ctx.dtype)
                grads.append(linear_input_grad(errors, weight))
                add_weight_grad(weight_grad, errors, hidden)
        hidden_grad = torch.cat(grads) if grads else torch.zeros_like(hidden_RD)
        return hidden_grad.to(hidden_RD.dtype), weight_grad.to(weight_VD.dtype), None, None, None


def _logps_and_errors(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each row (R,), and its gradient by the logits: one at the label minus softmax. Overwrites the
    logits.
    """
    highest = logits.amax(1, keepdim=True)
    at_label = logits.gather(1, labels) - highest
    exponentials = logits.sub_(highest).exp_()
    total = exponentials.sum(1, keepdim=True)
    errors = exponentials.div_(total.neg())
    errors.scatter_(1, labels, errors.gather(1, labels) + 1.0)
    return (at_label - total.log()).squeeze(1), errors
