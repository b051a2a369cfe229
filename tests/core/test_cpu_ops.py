"""CPU operations equal the decoder's formulas, in value and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


# --- matrix products ------------------------------------------------------------------------------------


class Operators(TorchDispatchMode):
    """Records the operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})


def uses_onednn(compute: Callable[[], object]) -> bool:
    with Operators() as operators:
        compute()
    return any(name.startswith("traindeck::linear") for name in operators.names)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().norm()) <= 1e-5 * float(expected.detach().norm())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "outputs"), [((2048, 64), 192), ((4, 512, 192), 64), ((1, 300, 512), 512), ((2, 3, 100, 128), 80)]
)
def test_a_linear_layer_equals_torch(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    x = random_tensor(*shape, dtype=torch.float32)
    inputs = [x, random_tensor(outputs, shape[-1], dtype=torch.float32, seed=1)]
    if bias:
        inputs.append(random_tensor(outputs, dtype=torch.float32, seed=2))
    assert uses_onednn(lambda: cpu_ops.linear(*inputs))
    gradient = torch.randn(*shape[:-1], outputs, generator=torch.Generator().manual_seed(3))
    results = []
    for compute in (cpu_ops.linear, F.linear):
        value = compute(*inputs)
        results.append([value, *torch.autograd.grad(value, inputs, gradient)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


def test_views_are_multiplied_as_they_are() -> None:
    x = random_tensor(64, 8, 1024, dtype=torch.float32).transpose(1, 2)
    weight = random_tensor(8, 96, dtype=torch.float32, seed=1).t()
    value = cpu_ops.linear(x, weight)
    assert_close(value, F.linear(x, weight))
    for actual, expected in zip(
        torch.autograd.grad(value.sum(), (x, weight)),  # the gradient is one number, expanded
        torch.autograd.grad(F.linear(x, weight).sum(), (x, weight)),
        strict=True,
    ):
        assert_close(actual, expected)


def test_a_frozen_layer_keeps_no_input_and_computes_no_gradient() -> None:
    x, weight = random_tensor(512, 128, dtype=torch.float32), torch.ones(128, 128)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = cpu_ops.linear(x, weight)
    assert [one.shape for one in saved] == [weight.shape]
    with Operators() as operators:
        torch.autograd.grad(value, x, torch.ones_like(value))
    assert operators.names.count("traindeck::linear") == 1


def test_gradients_of_a_large_matrix_are_added_by_parts() -> None:
    errors, x = (random_tensor(16, width, dtype=torch.float32, seed=width).detach() for width in (10_000, 32))
    total = torch.ones(10_000, 32)
    assert uses_onednn(lambda: cpu_ops.add_weight_grad(total, errors, x))
    assert_close(total, 1 + errors.t() @ x)


def test_other_products_are_those_of_torch() -> None:
    large = random_tensor(512, 256, dtype=torch.float32).detach()
    small = large[:16]
    assert uses_onednn(lambda: cpu_ops.linear(large, large))
    assert not uses_onednn(lambda: cpu_ops.linear(small, small))
    assert not uses_onednn(lambda: cpu_ops.linear(large.bfloat16(), large.bfloat16()))
    assert not uses_onednn(lambda: cpu_ops.linear(large.to("meta"), large.to("meta")))
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_onednn(lambda: cpu_ops.linear(large, large))
        assert cpu_ops.linear(large, large).dtype == torch.bfloat16


def test_compiled_code_multiplies_the_same_way() -> None:
    x, weight = (random_tensor(rows, 128, dtype=torch.float32, seed=rows) for rows in (512, 96))
    compiled = torch.compile(cpu_ops.linear, backend="aot_eager", fullgraph=True)
    value, expected = compiled(x, weight), cpu_ops.linear(x, weight)
    assert torch.equal(value, expected)
    assert torch.equal(
        torch.autograd.grad(value, weight, expected.detach())[0],
        torch.autograd.grad(expected, weight, expected.detach())[0],
    )


def test_a_product_that_onednn_refuses_is_computed_by_torch() -> None:
    """As when oneDNN finds no memory for its code."""
    rows, weight = torch.randn(8, 16).double(), torch.randn(4, 16).double()
    with pytest.raises(RuntimeError):
        torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    assert torch.equal(torch.ops.traindeck.linear(rows, weight, None), rows @ weight.t())
