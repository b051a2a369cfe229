"""Choice of the next token. Shape: V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. `temperature` 0: greedy; `top_k` 0 and `top_p` 1: no limit."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


GREEDY: Final = SamplingParams(temperature=0)


def sample_token(logits_V: Tensor, sampling: SamplingParams, generator: torch.Generator) -> Tensor:
    """Sample one token from logits (V,)."""
    if sampling.temperature == 0:
        return logits_V.max(-1).indices  # argmax takes 4 times as long in bf16 on a CPU
    logits_V = logits_V.float() / sampling.temperature
    if sampling.top_k:
        lowest = logits_V.topk(min(sampling.top_k, logits_V.numel())).values[-1]
        logits_V = logits_V.masked_fill(logits_V < lowest, float("-inf"))
    if sampling.top_p < 1:
        logits_V = _apply_top_p(logits_V, sampling.top_p)
    return torch.multinomial(logits_V.softmax(-1), 1, generator=generator)[0]


def _apply_top_p(logits_V: Tensor, share: float) -> Tensor:
    """Mask all but the most probable tokens whose sum reaches `share` (Holtzman et al. 2020); at least one is kept."""
    ordered, order = logits_V.sort(descending=True)
    probability = ordered.softmax(-1)
    beyond = probability.cumsum(-1) - probability >= share
    return logits_V.masked_fill(beyond.scatter(0, order, beyond), float("-inf"))
