"""The chunked loss equals the reference in value and gradient."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.core.shapes import model_shape
from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.models.decoder import Decoder
from trainer_core.train.engine import compilation, measuring
from trainer_core.train.loss import batch_loss, linear_token_loss, token_loss

WIDTH, VOCAB_SIZE = 24, 101


def random_head(label_share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights of a head, and labels, of which about `label_share` are not ignored."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 17, WIDTH, generator=generator, requires_grad=True)
    weight = (torch.randn(VOCAB_SIZE, WIDTH, generator=generator) * 0.3).requires_grad_()
    labels = torch.randint(0, VOCAB_SIZE, (3, 17), generator=generator)
    return hidden, weight, labels.masked_fill(torch.rand(3, 17, generator=generator) >= label_share, IGNORE_INDEX)


def loss_and_gradients(loss: Tensor, *inputs: Tensor, scale: float = 1.0) -> list[Tensor]:
    return [loss.detach(), *(gradient / scale for gradient in torch.autograd.grad(loss * scale, inputs))]


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """`tolerance` is relative to the largest value."""
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        assert float((one - other).abs().max()) <= tolerance * float(other.abs().max())


@pytest.mark.parametrize("label_share", [1.0, 0.3, 0.0], ids=["all labels", "some labels", "no labels"])
@pytest.mark.parametrize("chunk", [1, 7, 51, 1000])
@pytest.mark.parametrize("with_count", [True, False])
def test_chunks_have_the_loss_and_gradients_of_the_reference(chunk: int, label_share: float, with_count: bool) -> None:
    hidden, weight, labels = random_head(label_share)
    counted = int((labels != IGNORE_INDEX).sum()) if with_count else None
    full = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    chunked = loss_and_gradients(linear_token_loss(hidden, weight, labels, chunk, counted), hidden, weight)
    assert_close(chunked, full, 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_are_accurate_under_autocast(dtype: torch.dtype) -> None:
    hidden, weight, labels = random_head(0.6)
    exact = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    scale = 2.0**10 if dtype is torch.float16 else 1.0  # the factor of a GradScaler
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_token_loss(hidden, weight, labels, 20)
    chunked = loss_and_gradients(loss, hidden, weight, scale=scale)
    assert_close(chunked, exact, {torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype])


def test_gradients_are_scaled_by_the_outer_gradient() -> None:
    hidden, weight, labels = random_head(0.6)
    tokens = int((labels != IGNORE_INDEX).sum())
    full = loss_and_gradients(token_loss(hidden @ weight.t(), labels) / tokens, hidden, weight)
    chunked = loss_and_gradients(linear_token_loss(hidden, weight, labels, 7) / tokens, hidden, weight)
    assert_close(chunked, full, 2e-6)


def test_no_gradients_are_computed_without_grad() -> None:
    hidden, weight, labels = random_head(0.6)
    with torch.no_grad():
        loss = linear_token_loss(hidden, weight, labels, 7)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, token_loss(hidden @ weight.t(), labels))


def test_a_second_backward_is_rejected() -> None:
    hidden, weight, labels = random_head(0.6)
    loss = linear_token_loss(hidden, weight, labels, 7)
    (loss * 3).backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        (loss * 3).backward()


class LargestResult(torch.overrides.TorchFunctionMode):
    """Records the number of elements of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.max_elements = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.max_elements = max(self.max_elements, result.numel())
        return result


def test_at_most_one_chunk_of_logits_exists() -> None:
    hidden, weight, labels = random_head(1.0)
    with LargestResult() as chunked:
        linear_token_loss(hidden, weight, labels, 25).backward()
    with LargestResult() as full:
        token_loss(nn.functional.linear(hidden, weight), labels).backward()
    assert full.max_elements == 51 * VOCAB_SIZE
    assert chunked.max_elements <= 25 * VOCAB_SIZE


def batch(rows: int = 4, length: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB_SIZE, (rows, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    labels[:, : length // 3] = IGNORE_INDEX
    return Batch(ids[:, :-1].contiguous(), labels, int((labels != IGNORE_INDEX).sum()), rows)


def model_gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_has_the_same_gradients_with_chunks(tied: bool) -> None:
    torch.manual_seed(0)
    shape = model_shape(VOCAB_SIZE, WIDTH, 1, n_heads=2, max_seq_len=16, tie_embeddings=tied)
    model = Decoder(shape)
    full = model_gradients(model, batch_loss(model, batch()))
    chunked = model_gradients(model, batch_loss(model, batch(), chunk=10))
    assert len(chunked) == len(list(model.parameters())) + 1
    assert_close(chunked, full, 1e-5)


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("grad_scale", [None, 0.5], ids=["no scale", "a scale"])
def test_a_compiled_chunked_loss_equals_the_reference(backend: str, grad_scale: float | None) -> None:
    hidden, weight, labels = random_head(0.6)
    full = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.compiler.reset)
        compilation.fix_extensions()  # the path of torch may contain a space
        compiled = torch.compile(linear_token_loss, backend=backend, fullgraph=True)
        scale = None if grad_scale is None else torch.tensor(grad_scale)
        chunked = loss_and_gradients(compiled(hidden, weight, labels, 30, grad_scale=scale), hidden, weight)
    assert_close(chunked, full, 1e-5)


def peaked_head(vocab_size: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that predict their labels, like those of a trained model.

    The probability of each other token is about 1e-8, below the smallest fp16 number. Tokens of the upper half are
    never labels.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, vocab_size // 2, (2, 32), generator=generator)
    noise = 0.5 * torch.randn(2, 32, vocab_size, generator=generator)
    hidden = (18.0 * nn.functional.one_hot(labels, vocab_size) + noise).requires_grad_()
    return hidden, torch.eye(vocab_size, requires_grad=True), labels


@pytest.mark.parametrize("outer_gradient", [1.0, 0.01], ids=["announced gradient", "other gradient"])
@pytest.mark.parametrize("chunk", [20, 1000])
def test_small_gradients_survive_in_fp16(chunk: int, outer_gradient: float) -> None:
    hidden, weight, labels = peaked_head()
    exact = torch.autograd.grad(token_loss(hidden.double() @ weight.double().t(), labels), (hidden, weight))
    assert float((hidden @ weight).detach().softmax(-1)[..., 512:].median()) < 2**-25, (
        "fp16 must round most probabilities to zero"
    )
    scale = torch.tensor(2.0**16 / labels.numel())  # the initial scale of GradScaler
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_token_loss(hidden, weight, labels, chunk, grad_scale=scale)
    gradients = torch.autograd.grad(loss * scale * outer_gradient, (hidden, weight))
    for name, actual, expected, tolerance in (
        ("hidden", gradients[0], exact[0], 5e-2),  # 1 - softmax is as inexact in fp32
        ("rows of labels", gradients[1][:512], exact[1][:512], 5e-2),
        ("rows of other tokens", gradients[1][512:], exact[1][512:], 1e-2),
    ):
        assert measuring.relative_error([actual / (scale * outer_gradient)], [expected.float()]) < tolerance, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_scale_of_a_power_of_two_changes_no_bit(dtype: torch.dtype) -> None:
    hidden, weight, labels = random_head(0.6)
    scale = torch.tensor(2.0**10)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
        plain = linear_token_loss(hidden, weight, labels, 20)
        scaled = linear_token_loss(hidden, weight, labels, 20, grad_scale=scale)
    for actual, expected in zip(
        loss_and_gradients(scaled, hidden, weight, scale=float(scale)),
        loss_and_gradients(plain, hidden, weight, scale=float(scale)),
        strict=True,
    ):
        assert torch.equal(actual, expected)
