"""CPU operations equal the decoder's formulas, in value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.shapes import model_shape
from trainer_core.models import cpu_ops
from trainer_core.models.decoder import Decoder, RmsNorm
from trainer_core.models.model_config import RopeConfig
from trainer_core.models.rotary import apply_rotary, rotary_table


def random_tensor(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def rotary_tables(length: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cos, sin = rotary_table(RopeConfig(), width, length)
    return cos.to(dtype).unsqueeze(0), sin.to(dtype).unsqueeze(0)


def random_heads(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor of shape (2, 3, 5, 8) in the memory layout of a projection."""
    return random_tensor(2, 5, 3, 8, seed=seed, dtype=dtype).detach().transpose(1, 2).requires_grad_()


def values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, compute: Any, *inputs: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Value and gradients computed with `cpu_ops`, and by the formulas of the decoder."""
    results: list[list[Tensor]] = []
    for supported in (True, False):
        monkeypatch.setattr(cpu_ops, "is_supported", lambda x, result=supported: result)
        value = compute()
        gradient = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(9))
        results.append([value.detach(), *torch.autograd.grad(value, inputs, gradient)])
    return results[0], results[1]


@pytest.mark.parametrize("shape", [(2, 5, 16), (7, 16), (2, 3, 5, 16)])
def test_the_norm_equals_the_formula(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    norm = RmsNorm(16, 1e-5)
    with torch.no_grad():
        norm.weight.copy_(random_tensor(16, dtype=torch.float32, seed=2))
    x = random_tensor(*shape, dtype=torch.float32)
    actual, expected = values_and_gradients(monkeypatch, lambda: norm(x), x, norm.weight)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6)


def test_the_norm_of_zeros_is_finite() -> None:
    x, weight = torch.zeros(2, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    value = cpu_ops.rms_norm(x, weight, 1e-5)
    value.sum().backward()
    assert not value.any()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("by_position", [False, True], ids=["one table", "positions of packed documents"])
def test_the_rotation_equals_the_formula(by_position: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cos, sin = rotary_tables(5, 8, torch.float32)
    if by_position:
        positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
        cos, sin = cos[0][positions], sin[0][positions]
    x = random_heads(dtype=torch.float32)
    actual, expected = values_and_gradients(monkeypatch, lambda: apply_rotary(x, cos, sin), x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_model_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Decoder(model_shape(64, 32, 2, max_seq_len=16, qk_norm=True))
    ids = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(3))
    actual, expected = values_and_gradients(monkeypatch, lambda: model(ids), *model.parameters())
    for one, other in zip(actual, expected, strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(other.norm())


def test_other_devices_dtypes_and_compilers_use_the_formula() -> None:
    assert cpu_ops.is_supported(torch.zeros(1))
    assert not cpu_ops.is_supported(torch.zeros(1, dtype=torch.bfloat16))
    assert not cpu_ops.is_supported(torch.zeros(1, device="meta"))

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: Tensor) -> Tensor:
        return x + 1 if cpu_ops.is_supported(x) else x

    assert float(compiled(torch.zeros(1))) == 0
