"""Group relative policy optimization: rewards of answers as a loss.

The advantage of an answer is its reward relative to the other answers to its prompt, so no model of the value is
needed. Sources: GRPO https://arxiv.org/abs/2402.03300, DAPO https://arxiv.org/abs/2503.14476, Dr. GRPO
https://arxiv.org/abs/2503.20783; the estimator of the KL divergence http://joschu.net/blog/kl-approx.html (k3).

Shapes: P prompts, G answers to a prompt, B sequences, T positions, R labeled positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.models.language_model import LanguageModel
from trainer_core.train.preferences import evaluating, label_logps, reference_model

_EPSILON: Final = 1e-4  # added to standard deviations, as in TRL


def group_advantages(rewards_PG: Tensor, scale: str) -> Tensor:
    """Rewards minus the mean of their group, divided by the standard deviation of the group or of the batch, or by
    nothing (`scale` none).
    """
    centered_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    equal_P1 = rewards_PG.amax(1, keepdim=True) == rewards_PG.amin(1, keepdim=True)
    centered_PG = centered_PG.masked_fill(equal_P1, 0.0)  # rounded, a mean differs from equal rewards
    if scale == "none":
        return centered_PG
    deviation = rewards_PG.std() if scale == "batch" else rewards_PG.std(1, keepdim=True)
    return centered_PG / (deviation + _EPSILON)


def clipped_losses(logps_R: Tensor, old_logps_R: Tensor, advantages_R: Tensor, low: float, high: float) -> Tensor:
    """Losses of PPO. `old_logps_R`: of the model that generated the tokens."""
    ratio_R = torch.exp(logps_R - old_logps_R)
    return -torch.min(ratio_R * advantages_R, ratio_R.clamp(1 - low, 1 + high) * advantages_R)


def kl_divergences(logps_R: Tensor, reference_R: Tensor) -> Tensor:
    """Estimates, never negative, of the KL divergence from the reference model at each token."""
    difference_R = reference_R - logps_R
    return torch.exp(difference_R) - difference_R - 1


class PolicySums(NamedTuple):
    """Sums over the tokens of answers."""

    tokens: float = 0.0
    entropy: float = 0.0  # negative log-probabilities: on average the entropy of the distribution
    kl: float = 0.0
    clipped: float = 0.0  # tokens without gradient, because their probability changed too much


class PolicyLoss:
    """Loss of generated answers. `Engine.objective` of a run that learns from rewards."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._logps = partial(label_logps, temperature=config.rollout_temperature)

    def prepare(self, batches: Sequence[Batch]) -> None:
        """Receive the micro-batches of a step: the loss of one does not depend on the others."""

    def __call__(self, model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
        """The summed loss of the answers and their `PolicySums` (5,), in fp32. `chunk`, `varlen`: see `batch_loss`."""
        assert batch.advantages is not None
        config = self._config
        logps_R, rows_R = self._logps(model, batch, batch.labels, chunk=chunk, varlen=varlen)
        sequences_R = rows_R // batch.labels.shape[1]
        old_R = logps_R.detach() if batch.old_logps is None else batch.old_logps.flatten()[rows_R]
        advantages_R = batch.advantages[sequences_R]
        losses_R = clipped_losses(logps_R, old_R, advantages_R, config.clip_low, config.clip_high)
        kl_R = torch.zeros_like(logps_R)
        if config.kl_beta:
            with reference_model(model):
                reference_R, _ = self._logps(model, batch, batch.labels, chunk=chunk, varlen=varlen)
            kl_R = kl_divergences(logps_R, reference_R)
            losses_R = losses_R + config.kl_beta * kl_R
        if config.policy_loss == "grpo":
            losses_R = losses_R / (batch.labels != IGNORE_INDEX).sum(1)[sequences_R]
        clipped_R = self._are_clipped(logps_R.detach() - old_R, advantages_R)
        values = (torch.ones_like(logps_R), -logps_R.detach(), kl_R.detach(), clipped_R.float())
        return torch.stack([losses_R.sum(), *(one.sum() for one in values)])

    def _are_clipped(self, log_ratios_R: Tensor, advantages_R: Tensor) -> Tensor:
        """Tokens without gradient."""
        ratio_R, config = torch.exp(log_ratios_R), self._config
        low_R, high_R = ratio_R < 1 - config.clip_low, ratio_R > 1 + config.clip_high
        return (low_R & (advantages_R < 0)) | (high_R & (advantages_R > 0))

    @torch.no_grad()
    def label_logps(self, model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
        """Log-probabilities (B, T) of the labels, without dropout, as in generation."""
        with evaluating(model):
            logps_R, rows_R = self._logps(model, batch, batch.labels, chunk=chunk, varlen=varlen)
        return logps_R.new_zeros(batch.labels.numel()).index_copy(0, rows_R, logps_R).view_as(batch.labels)


def policy_means(sums: Sequence[float]) -> dict[str, float]:
    """Fields of the event `step` from `PolicySums`."""
    tokens, *others = sums
    return dict(zip(("entropy", "kl", "clip_ratio"), (one / max(1.0, tokens) for one in others), strict=True))
