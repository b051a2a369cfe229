"""The chunked loss equals the reference in value and gradient."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer_core.data.loader import IGNORE_INDEX, Batch
from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.train.engine import measuring
from trainer_core.train.loss import batch_loss, linear_token_loss, token_loss

WIDTH, VOCABULARY = 24, 101


def head_and_rows(share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and labels of which about a `share` counts."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 17, WIDTH, generator=generator, requires_grad=True)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.3).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (3, 17), generator=generator)
    return hidden, weight, labels.masked_fill(torch.rand(3, 17, generator=generator) >= share, IGNORE_INDEX)


def loss_and_gradients(loss: Tensor, *inputs: Tensor, scale: float = 1.0) -> list[Tensor]:
    return [loss.detach(), *(gradient / scale for gradient in torch.autograd.grad(loss * scale, inputs))]


def assert_alike(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """Differences are of the largest value."""
    for some, other in zip(ours, theirs, strict=True):
        assert some.dtype == other.dtype
        assert float((some - other).abs().max()) <= tolerance * float(other.abs().max())


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0], ids=["all labels count", "some do", "none does"])
@pytest.mark.parametrize("chunk", [1, 7, 51, 1000])
@pytest.mark.parametrize("known", [True, False])
def test_chunks_have_the_loss_and_gradients_of_the_reference(chunk: int, share: float, known: bool) -> None:
    hidden, weight, labels = head_and_rows(share)
    counted = int((labels != IGNORE_INDEX).sum()) if known else None
    whole = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    parts = loss_and_gradients(linear_token_loss(hidden, weight, labels, chunk, counted), hidden, weight)
    assert_alike(parts, whole, 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_are_accurate_under_autocast(dtype: torch.dtype) -> None:
    hidden, weight, labels = head_and_rows(0.6)
    exact = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    scale = 2.0**10 if dtype is torch.float16 else 1.0  # as a GradScaler multiplies it
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_token_loss(hidden, weight, labels, 20)
    parts = loss_and_gradients(loss, hidden, weight, scale=scale)
    assert_alike(parts, exact, {torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype])


def test_gradients_follow_the_outer_gradient() -> None:
    hidden, weight, labels = head_and_rows(0.6)
    tokens = int((labels != IGNORE_INDEX).sum())
    whole = loss_and_gradients(token_loss(hidden @ weight.t(), labels) / tokens, hidden, weight)
    parts = loss_and_gradients(linear_token_loss(hidden, weight, labels, 7) / tokens, hidden, weight)
    assert_alike(parts, whole, 2e-6)


def test_no_gradients_are_computed_without_grad() -> None:
    hidden, weight, labels = head_and_rows(0.6)
    with torch.no_grad():
        loss = linear_token_loss(hidden, weight, labels, 7)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, token_loss(hidden @ weight.t(), labels))


def test_a_second_backward_is_rejected() -> None:
    hidden, weight, labels = head_and_rows(0.6)
    loss = linear_token_loss(hidden, weight, labels, 7)
    (loss * 3).backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        (loss * 3).backward()


class Largest(torch.overrides.TorchFunctionMode):
    """Remembers the most numbers that one result had."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_at_most_one_chunk_of_logits_exists() -> None:
    hidden, weight, labels = head_and_rows(1.0)
    with Largest() as parts:
        linear_token_loss(hidden, weight, labels, 25).backward()
    with Largest() as whole:
        token_loss(nn.functional.linear(hidden, weight), labels).backward()
    assert whole.numbers == 51 * VOCABULARY
    assert parts.numbers <= 25 * VOCABULARY


def batch(rows: int = 4, length: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (rows, length + 1), generator=generator)
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
    shape = ModelConfig(VOCABULARY, WIDTH, 1, 2, 2, 32, max_seq_len=16, tie_embeddings=tied)
    model = Decoder(shape)
    whole = model_gradients(model, batch_loss(model, batch()))
    parts = model_gradients(model, batch_loss(model, batch(), chunk=10))
    assert len(parts) == len(list(model.parameters())) + 1
    assert_alike(parts, whole, 1e-5)


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("grad_scale", [None, 0.5], ids=["no scale", "a scale"])
def test_a_compiled_chunked_loss_is_the_same(backend: str, grad_scale: float | None) -> None:
    hidden, weight, labels = head_and_rows(0.6)
    whole = loss_and_gradients(token_loss(hidden @ weight.t(), labels), hidden, weight)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.compiler.reset)
        compiled = torch.compile(linear_token_loss, backend=backend, fullgraph=True)
        scale = None if grad_scale is None else torch.tensor(grad_scale)
        parts = loss_and_gradients(compiled(hidden, weight, labels, 30, grad_scale=scale), hidden, weight)
    assert_alike(parts, whole, 1e-5)


def peaked_head_and_rows(words: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that predict their labels, as of a trained model: each other word's share is about 1e-8, below the
    smallest fp16 number. Words in the upper half are never labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, words // 2, (2, 32), generator=generator)
    noise = 0.5 * torch.randn(2, 32, words, generator=generator)
    hidden = (18.0 * nn.functional.one_hot(labels, words) + noise).requires_grad_()
    return hidden, torch.eye(words, requires_grad=True), labels


@pytest.mark.parametrize("outer", [1.0, 0.01], ids=["gradient as expected", "another gradient"])
@pytest.mark.parametrize("chunk", [20, 1000])
def test_small_gradients_survive_in_fp16(chunk: int, outer: float) -> None:
    hidden, weight, labels = peaked_head_and_rows()
    exact = torch.autograd.grad(token_loss(hidden.double() @ weight.double().t(), labels), (hidden, weight))
    assert float((hidden @ weight).detach().softmax(-1)[..., 512:].median()) < 2**-25, "most of them are zero in fp16"
    scale = torch.tensor(2.0**16 / labels.numel())  # as GradScaler begins
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_token_loss(hidden, weight, labels, chunk, grad_scale=scale)
    found = torch.autograd.grad(loss * scale * outer, (hidden, weight))
    for name, ours, theirs, tolerance in (
        ("hidden", found[0], exact[0], 5e-2),  # in fp32 1 - softmax is as inexact
        ("rows of labels", found[1][:512], exact[1][:512], 5e-2),
        ("rows of other words", found[1][512:], exact[1][512:], 1e-2),
    ):
        assert measuring.relative_error([ours / (scale * outer)], [theirs.float()]) < tolerance, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_power_of_two_scale_changes_no_bit(dtype: torch.dtype) -> None:
    hidden, weight, labels = head_and_rows(0.6)
    scale = torch.tensor(2.0**10)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
        plain = linear_token_loss(hidden, weight, labels, 20)
        scaled = linear_token_loss(hidden, weight, labels, 20, grad_scale=scale)
    for some, other in zip(
        loss_and_gradients(scaled, hidden, weight, scale=float(scale)),
        loss_and_gradients(plain, hidden, weight, scale=float(scale)),
        strict=True,
    ):
        assert torch.equal(some, other)
