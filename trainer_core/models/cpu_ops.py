"""RMSNorm and rotary positions in fewer passes over memory, for eager training on a CPU in fp32.

Torch computes each with a dozen operations, and as many in backward. These equal the formulas in decoder.py and
rotary.py within rounding (tests/core/test_cpu_ops.py). On a GPU torch has its own kernels, and a compiler fuses the
formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def is_supported(x: Tensor) -> bool:
    """Whether these operations apply."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension."""
    normed: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return normed


def apply_rotary(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor) -> Tensor:
    """`rotary.apply_rotary`."""
    turned: Tensor = _ApplyRotary.apply(x_BHTC, cos_BTC, sin_BTC)  # type: ignore[no-untyped-call]
    return turned


class _RmsNorm(torch.autograd.Function):
    """With n = x / rms: dx = (g * weight - n * mean(g * weight * n)) / rms, dweight = sum(g * n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        squared = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squared.mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        result: Tensor = normed * weight
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        product = outer[0] * normed
        mean = (product @ weight).unsqueeze(-1).mul_(-1.0 / normed.shape[-1])
        weight_grad = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return (outer[0] * weight).addcmul_(normed, mean).mul_(scale), weight_grad, None


class _ApplyRotary(torch.autograd.Function):
    """The gradient of a rotation is the inverse rotation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _apply_rotation(x, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _apply_rotation(outer[0], cos, sin, -1.0), None, None


def _apply_rotation(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor, sign: float) -> Tensor:
    half = x_BHTC.shape[-1] // 2
    sin = sin_BTC[..., :half].unsqueeze(1)
    turned = x_BHTC * cos_BTC.unsqueeze(1)
    turned[..., :half].addcmul_(x_BHTC[..., half:], sin, value=-sign)
    turned[..., half:].addcmul_(x_BHTC[..., :half], sin, value=sign)
    return turned
