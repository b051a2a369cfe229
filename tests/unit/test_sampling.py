"""Choice of the next token: distribution, limits, and independence of the rows of a batch."""

from __future__ import annotations

import pytest
import torch

from trainer_core.generation.sampling import GREEDY, SamplingParams, sample_tokens

LOGITS = torch.tensor([2.0, -1.0, 0.5, float("-inf"), 1.0, 0.0])


def shares(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, count: int = 20_000) -> torch.Tensor:
    """Relative frequency of each token, over as many seeds."""
    samplings = [SamplingParams(temperature, top_k, top_p, seed) for seed in range(count)]
    tokens = sample_tokens(LOGITS.expand(count, -1), samplings, [0] * count)
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS)) / count


def assert_close(found: torch.Tensor, probabilities: torch.Tensor) -> None:
    torch.testing.assert_close(found, probabilities, atol=0.015, rtol=0)
    assert not found[probabilities == 0].any()


def test_tokens_have_the_probabilities_of_the_model() -> None:
    assert_close(shares(), LOGITS.softmax(0))
    assert_close(shares(temperature=0.5), (LOGITS / 0.5).softmax(0))


def test_the_draws_of_one_seed_have_these_probabilities_too() -> None:
    tokens = sample_tokens(LOGITS.expand(20_000, -1), [SamplingParams(1.0, seed=7)] * 20_000, range(20_000))
    assert_close(torch.bincount(torch.tensor(tokens), minlength=len(LOGITS)) / 20_000, LOGITS.softmax(0))


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 5e-324])
@pytest.mark.parametrize("limits", [(0, 1.0), (3, 1.0), (0, 0.5)])
def test_a_tiny_temperature_is_greedy(temperature: float, limits: tuple[int, float]) -> None:
    logits = torch.tensor([[2e4, 60.0, -3e4], [-5.0, -4.0, float("-inf")]])
    samplings = [SamplingParams(temperature, *limits, seed) for seed in (1, 2)]
    assert sample_tokens(logits, samplings, [0, 0]) == [0, 1]


def test_top_k_and_top_p_leave_out_unlikely_tokens() -> None:
    three, two = LOGITS.clone(), LOGITS.clone()
    three[[1, 3, 5]] = two[[1, 2, 3, 5]] = float("-inf")
    assert_close(shares(top_k=3), three.softmax(0))
    assert_close(shares(top_p=0.7), two.softmax(0))  # of 0.58, 0.21, 0.13, …


def test_a_token_does_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(3))
    limits = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.9), (0.0, 0, 1.0)]
    samplings = [SamplingParams(*limits[row % 4], seed=2**63 + row) for row in range(40)]
    numbers = [row % 7 for row in range(40)]
    together = sample_tokens(logits, samplings, numbers)
    alone = [sample_tokens(logits[row][None], [samplings[row]], [numbers[row]])[0] for row in range(40)]
    assert together == alone
    assert together[3::4] == logits[3::4].argmax(1).tolist()
    assert sample_tokens(logits, [GREEDY] * 40, numbers) == logits.argmax(1).tolist()
