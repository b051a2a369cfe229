"""Choice of the next token. Shapes: B rows, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer_core.data.order import splitmix64

_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15  # increment of SplitMix64 (Steele, Lea and Flood, 2014)
_MIN_TEMPERATURE: Final = 1e-30  # not 0 in float32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. `temperature` 0: greedy; `top_k` 0 and `top_p` 1: no limit."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


GREEDY: Final = SamplingParams(temperature=0)


def sample_tokens(logits_BV: Tensor, samplings: Sequence[SamplingParams], numbers: Sequence[int]) -> list[int]:
    """Sample one token for each row. `numbers`: tokens sampled with the same seed before.

    A row's token depends only on its own logits, parameters and number.
    """
    tokens_B = logits_BV.max(-1).indices  # argmax takes 4 times as long in bf16 on a CPU
    drawn_B = _uniform([sampling.seed % 2**64 for sampling in samplings], numbers).to(logits_BV.device)
    limits = [(sampling.temperature, sampling.top_k, sampling.top_p) for sampling in samplings]
    for own in sorted(set(limits)):
        if own[0]:
            rows = torch.tensor([row for row, other in enumerate(limits) if other == own], device=logits_BV.device)
            tokens_B[rows] = _draw(logits_BV[rows], drawn_B[rows], *own)
    return tokens_B.tolist()


def _uniform(seeds: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """One number in (0, 1] for each seed and number, with 24 random bits: the generator SplitMix64."""
    gamma = np.uint64(_GOLDEN_GAMMA)
    states = splitmix64(np.array(seeds, np.uint64) + gamma) + (np.array(numbers, np.uint64) + np.uint64(1)) * gamma
    return torch.from_numpy(((splitmix64(states) >> np.uint64(40)) + np.uint64(1)).astype(np.float32) * 2.0**-24)


def _draw(logits_BV: Tensor, drawn_B: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The tokens at the shares `drawn_B` of the cumulative probability."""
    logits_BV = logits_BV.float()
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / max(temperature, _MIN_TEMPERATURE)  # at most 0: no inf
    if top_k:
        lowest_B1 = logits_BV.topk(min(top_k, logits_BV.shape[1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < lowest_B1, float("-inf"))
    if top_p < 1:
        logits_BV = _apply_top_p(logits_BV, top_p)
    cumulative_BV = logits_BV.softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative_BV, drawn_B[:, None] * cumulative_BV[:, -1:])[:, 0]


def _apply_top_p(logits_BV: Tensor, share: float) -> Tensor:
    """Mask all but the most probable tokens whose sum reaches `share` (Holtzman et al. 2020); at least one is kept."""
    ordered, order = logits_BV.sort(descending=True)
    probability = ordered.softmax(-1)
    beyond = probability.cumsum(-1) - probability >= share
    return logits_BV.masked_fill(beyond.scatter(1, order, beyond), float("-inf"))
