"""`linear_token_logps` equals log-softmax over all logits, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.train.token_logps import linear_token_logps

ROWS, WIDTH, VOCABULARY = 13, 8, 37


def inputs(frozen: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(ROWS, WIDTH, generator=generator).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).requires_grad_(not frozen)
    labels = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    return hidden, weight, labels, torch.randn(ROWS, generator=generator)


def reference(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.log_softmax((hidden @ weight.t()).float(), -1).gather(1, labels[:, None]).squeeze(1)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_values_and_gradients_equal_those_of_all_logits(frozen: bool, chunk: int) -> None:
    hidden, weight, labels, outer = inputs(frozen)
    expected = reference(hidden, weight, labels)
    wanted = torch.autograd.grad(expected, [hidden] if frozen else [hidden, weight], outer)
    found = linear_token_logps(hidden, weight, labels, chunk)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, [hidden] if frozen else [hidden, weight], outer), wanted)


@pytest.mark.parametrize("frozen", [True, False])
def test_without_labels_gradients_are_zero(frozen: bool) -> None:
    hidden, weight, labels, _ = inputs(frozen)
    found = linear_token_logps(hidden[:0], weight, labels[:0], 4)
    found.sum().backward()
    assert found.shape == (0,)
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_small_gradients_survive_in_fp16() -> None:
    hidden = (15 * torch.eye(WIDTH)).half().requires_grad_()  # probabilities of other tokens: 3e-7
    weight, labels = torch.eye(VOCABULARY, WIDTH).half(), torch.arange(WIDTH)
    outer = torch.full((WIDTH,), 2.0**14)  # as loss scaling multiplies
    exact = hidden.detach().float().requires_grad_()
    (wanted,) = torch.autograd.grad(reference(exact, weight.float(), labels), [exact], outer)
    (found,) = torch.autograd.grad(linear_token_logps(hidden, weight, labels, 4), [hidden], outer)
    torch.testing.assert_close(found.float(), wanted, atol=0, rtol=0.02)


def test_no_gradients_are_computed_without_need() -> None:
    hidden, weight, labels, _ = inputs(frozen=False)
    with torch.no_grad():
        found = linear_token_logps(hidden, weight, labels, 4)
    torch.testing.assert_close(found, reference(hidden, weight, labels))
    assert not found.requires_grad
