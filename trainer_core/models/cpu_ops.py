"""Faster operations for training on a CPU in fp32.

- Matrix products by oneDNN. torch calls MKL, which does not use AVX-512 on processors of AMD: half of the speed on
  Zen 5. With AVX2 both are about as fast. Figures in docs/performance.md.
- RMSNorm and rotary positions in fewer passes over memory, for eager training: torch computes each with a dozen
  operations, and as many in backward.

These equal torch's and the formulas in decoder.py and rotary.py within rounding (tests/core/test_cpu_ops.py). On a GPU
torch has its own kernels, and a compiler fuses the formulas.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_MIN_MULTIPLICATIONS: Final = 2**22  # 0.1 ms on two cores: smaller products take longer by oneDNN
_MAX_SUM_COLUMNS: Final = 4096  # of a matrix that is added to another

# --- matrix products: R rows, I inputs, O outputs ------------------------------------------------------


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear` on any device: (..., I) to (..., O)."""
    if not _uses_onednn(x.numel() * weight_OI.shape[0], x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    product: Tensor = _Linear.apply(rows, weight_OI, bias_O)  # type: ignore[no-untyped-call]
    return product.view(*x.shape[:-1], -1)


def linear_input_grad(grad_RO: Tensor, weight_OI: Tensor) -> Tensor:
    """Gradient (R, I) of `linear` by its input. Without autograd."""
    if not _uses_onednn(grad_RO.numel() * weight_OI.shape[1], grad_RO, weight_OI):
        return grad_RO @ weight_OI
    return _product(grad_RO, weight_OI.t())


def linear_weight_grad(grad_RO: Tensor, x_RI: Tensor) -> Tensor:
    """Gradient (O, I) of `linear` by its weight. Without autograd."""
    if not _uses_onednn(grad_RO.numel() * x_RI.shape[1], grad_RO, x_RI):
        return grad_RO.t() @ x_RI
    rows, inputs, outputs = *x_RI.shape, grad_RO.shape[1]
    if (rows + outputs) * inputs < rows * outputs:  # oneDNN copies its first matrix, and autograd a transposed result
        return _product(x_RI.t(), grad_RO.t()).t()
    return _product(grad_RO.t(), x_RI.t())


def add_weight_grad(total_OI: Tensor, grad_RO: Tensor, x_RI: Tensor) -> None:
    """Add `linear_weight_grad` in place; in fp32 without a product of the size of `total_OI` (fp32)."""
    if _uses_onednn(grad_RO.numel() * x_RI.shape[1], grad_RO, x_RI):
        for first in range(0, len(total_OI), _MAX_SUM_COLUMNS):
            part = slice(first, first + _MAX_SUM_COLUMNS)
            total_OI[part] += _product(grad_RO[:, part].t(), x_RI.t())
    elif grad_RO.dtype == torch.float32:
        total_OI.addmm_(grad_RO.t(), x_RI)
    else:
        total_OI += grad_RO.t() @ x_RI


def _uses_onednn(multiplications: int, *matrices: Tensor) -> bool:
    return (
        all(matrix.device.type == "cpu" and matrix.dtype == torch.float32 for matrix in matrices)
        and multiplications >= _MIN_MULTIPLICATIONS
        and _HAS_ONEDNN
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_RI if ctx.needs_input_grad[1] else None, weight_OI)
        return _product(x_RI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, weight_OI = ctx.saved_tensors
        grad_RO = outer[0].contiguous()
        return (
            linear_input_grad(grad_RO, weight_OI) if ctx.needs_input_grad[0] else None,
            linear_weight_grad(grad_RO, x_RI) if ctx.needs_input_grad[1] else None,
            grad_RO.sum(0) if ctx.needs_input_grad[2] else None,
        )


def _product(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.traindeck.linear(x_RI, weight_OI, bias_O)
    return product


# An operator of our own, because the compiler converts torch's (private) one only for constant weights.
_HAS_ONEDNN: Final = hasattr(torch.ops.mkldnn, "_linear_pointwise")
_operators: Final[Any] = torch.library.Library("traindeck", "DEF")  # type: ignore[no-untyped-call]
_operators.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", tags=torch.Tag.needs_fixed_stride_order)


@torch.library.impl(_operators, "linear", "CPU")
def _multiply(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    try:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, weight_OI, bias_O, "none", [], "")
    except RuntimeError:  # such as "could not create a primitive"; torch says whether memory has run out
        return F.linear(x_RI, weight_OI, bias_O)
    return product


@torch.library.impl(_operators, "linear", "Meta")
def _describe(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    return x_RI.new_empty(x_RI.shape[0], weight_OI.shape[0])


# --- norm and rotary positions --------------------------------------------------------------------------


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
