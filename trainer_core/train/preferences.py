"""Losses that compare answers: DPO, IPO, ORPO and SimPO on pairs, KTO on single answers with a label.

Each is computed from the log-probability of every answer; DPO, IPO and KTO relative to a reference model, the model
before training. Sources: DPO https://arxiv.org/abs/2305.18290, IPO https://arxiv.org/abs/2310.12036, ORPO
https://arxiv.org/abs/2403.07691, SimPO https://arxiv.org/abs/2405.14734, KTO https://arxiv.org/abs/2402.01306.

Shapes: B sequences, T positions, S conversations in a sequence, P pairs, R labeled positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch, with_segments
from trainer_core.models.adapters import adapters_disabled
from trainer_core.models.attention import document_mask
from trainer_core.models.language_model import LanguageModel
from trainer_core.train.loss import labeled_rows, nonzero
from trainer_core.train.token_logps import linear_token_logps

USES_REFERENCE: Final = frozenset({"dpo", "ipo", "kto"})
_MAX_MEAN_LOGP: Final = -1e-6  # of `orpo`: the odds of a certain answer are infinite


class AnswerLogps(NamedTuple):
    """The chosen or the rejected answers of pairs (P,), or the answers of KTO. `reference`: log-probabilities of the
    reference model; zeros without one.
    """

    logps: Tensor
    reference: Tensor
    tokens: Tensor

    @property
    def mean_logps(self) -> Tensor:
        return self.logps / self.tokens

    @property
    def log_ratios(self) -> Tensor:
        return self.logps - self.reference


# --- losses ----------------------------------------------------------------------------------------------

PairLoss = Callable[[AnswerLogps, AnswerLogps, Config], Tensor]
"""Losses (P,) of the chosen and rejected answers of pairs."""


def dpo_loss(chosen: AnswerLogps, rejected: AnswerLogps, config: Config) -> Tensor:
    return _preference_loss(config.preference_beta * (chosen.log_ratios - rejected.log_ratios), config)


def ipo_loss(chosen: AnswerLogps, rejected: AnswerLogps, config: Config) -> Tensor:
    """With mean log-ratios of tokens, as in TRL: sums grow with the length of answers."""
    margin = chosen.log_ratios / chosen.tokens - rejected.log_ratios / rejected.tokens
    return (margin - 1 / (2 * config.preference_beta)) ** 2


def orpo_loss(chosen: AnswerLogps, rejected: AnswerLogps, config: Config) -> Tensor:
    """The odds ratio; `PreferenceLoss` adds the loss of the chosen conversation."""
    means = [one.mean_logps.clamp(max=_MAX_MEAN_LOGP) for one in (chosen, rejected)]
    odds = [mean - torch.log(-torch.expm1(mean)) for mean in means]
    return -config.preference_beta * F.logsigmoid(odds[0] - odds[1])


def simpo_loss(chosen: AnswerLogps, rejected: AnswerLogps, config: Config) -> Tensor:
    margin = config.preference_beta * (chosen.mean_logps - rejected.mean_logps)
    return _preference_loss(margin - config.simpo_margin, config)


def _preference_loss(margin: Tensor, config: Config) -> Tensor:
    """Bradley-Terry loss of reward margins. `label_smoothing`: share of pairs that may be the wrong way round."""
    smoothing = config.label_smoothing
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


def kto_loss(chosen: AnswerLogps, rejected: AnswerLogps, config: Config, reference_point: Tensor) -> Tensor:
    """Losses of both kinds of answers, one after another. `reference_point`: estimate of the KL divergence."""
    gains = config.preference_beta * (chosen.log_ratios - reference_point)
    drops = config.preference_beta * (reference_point - rejected.log_ratios)
    return torch.cat([config.desirable_weight * F.sigmoid(-gains), config.undesirable_weight * F.sigmoid(-drops)])


PAIR_LOSSES: Final[dict[str, PairLoss]] = {"dpo": dpo_loss, "ipo": ipo_loss, "orpo": orpo_loss, "simpo": simpo_loss}


# --- loss of a micro-batch -------------------------------------------------------------------------------


class RewardSums(NamedTuple):
    """Sums over answers. A reward is beta times the log-probability relative to the reference, or for losses without
    one, of the mean log-probability of the answer's tokens.
    """

    chosen: float  # rewards
    num_chosen: float
    rejected: float
    num_rejected: float
    correct: float  # pairs whose chosen answer has the higher reward; KTO: answers on the right side of the KL estimate
    num_compared: float


def reward_means(sums: Sequence[float]) -> dict[str, Any]:
    """Fields of the events `step` and `eval` from `RewardSums`."""
    found = RewardSums(*sums)
    chosen, rejected = found.chosen / max(1.0, found.num_chosen), found.rejected / max(1.0, found.num_rejected)
    return {
        "chosen_reward": chosen,
        "rejected_reward": rejected,
        "reward_margin": chosen - rejected,
        "reward_accuracy": found.correct / max(1.0, found.num_compared),
    }


class PreferenceLoss:
    """Loss of pairs. `Engine.objective` of a run that learns from preferences."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # The loss of chosen text: of ORPO with its prompt, as in the authors' code; otherwise of the answers.
        self._nll_share = {"orpo": 1.0, "kto": 0.0}.get(config.objective, config.sft_share)
        self._nll_scale: Tensor | None = None  # pairs per token of chosen text in the step

    def prepare(self, batches: Sequence[Batch]) -> None:
        """Receive the micro-batches of a step on all ranks: the loss of chosen text is a mean over all its tokens."""
        if self._nll_share:
            self._nll_scale = self._pairs_per_token(batches)

    def __call__(self, model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
        """The summed loss of the pairs (KTO: answers) and `RewardSums`, (7,) in fp32. `chunk`, `varlen`: see
        `batch_loss`.
        """
        reference_BS = batch.reference
        if reference_BS is None and self._config.objective in USES_REFERENCE:
            reference_BS = reference_logps(model, batch, chunk=chunk, varlen=varlen)
        text_BT = self._is_chosen_text(batch) if self._nll_share else None
        labels_BT = batch.labels if text_BT is None else torch.where(text_BT, next_tokens(batch), batch.labels)
        logps_R, rows_R = label_logps(model, batch, labels_BT, chunk=chunk, varlen=varlen)
        in_answer_R = batch.labels.flatten()[rows_R] != IGNORE_INDEX
        logps_BS = sum_conversations(logps_R * in_answer_R, rows_R, batch)
        tokens_BS = sum_conversations(in_answer_R.float(), rows_R, batch)
        chosen, rejected = self._sides(batch, logps_BS, reference_BS, tokens_BS)
        if self._config.objective == "kto":
            point = kl_estimate(model, batch, chunk=chunk, varlen=varlen)
            loss = kto_loss(chosen, rejected, self._config, point).sum()
            sums = self._reward_sums(chosen, rejected, point)
        else:
            loss = PAIR_LOSSES[self._config.objective](chosen, rejected, self._config).sum()
            sums = self._reward_sums(chosen, rejected)
        if text_BT is not None:
            scale = self._nll_scale if torch.is_grad_enabled() else None  # evaluation: of the micro-batch
            scale = self._pairs_per_token([batch]) if scale is None else scale
            loss = loss - self._nll_share * scale * (logps_R * text_BT.flatten()[rows_R]).sum()
        return torch.stack([loss, *sums])

    def _pairs_per_token(self, batches: Sequence[Batch]) -> Tensor:
        tokens = torch.stack([self._is_chosen_text(batch).sum() for batch in batches]).sum()
        return sum(batch.pairs for batch in batches) / tokens.clamp(min=1)

    def _reward_sums(self, chosen: AnswerLogps, rejected: AnswerLogps, point: Tensor | None = None) -> list[Tensor]:
        """`RewardSums`, of 0-dim tensors. `point`: see `kto_loss`."""
        relative = self._config.objective in USES_REFERENCE
        scores = [(one.log_ratios if relative else one.mean_logps).detach() for one in (chosen, rejected)]
        correct = scores[0] > scores[1] if point is None else torch.cat([scores[0] > point, scores[1] < point])
        rewards = [self._config.preference_beta * one for one in scores]
        counts = [one.new_full((), float(one.numel())) for one in (*rewards, correct.float())]
        return [rewards[0].sum(), counts[0], rewards[1].sum(), counts[1], correct.float().sum(), counts[2]]

    def _sides(
        self, batch: Batch, logps_BS: Tensor, reference_BS: Tensor | None, tokens_BS: Tensor
    ) -> tuple[AnswerLogps, AnswerLogps]:
        """The chosen and the rejected answers."""
        assert batch.preference is not None
        reference_BS = torch.zeros_like(logps_BS) if reference_BS is None else reference_BS
        flat = [one.flatten() for one in (logps_BS, reference_BS, tokens_BS.clamp(min=1))]
        masks = (batch.preference.flatten() > 0, batch.preference.flatten() < 0)
        count = None if self._config.objective == "kto" else batch.pairs
        chosen, rejected = (AnswerLogps(*(one[nonzero(mask, count)] for one in flat)) for mask in masks)
        return chosen, rejected

    def _is_chosen_text(self, batch: Batch) -> Tensor:
        """The positions (B, T) whose next tokens are chosen text."""
        assert batch.segments is not None
        assert batch.preference is not None
        chosen_BT = batch.preference.gather(1, batch.segments.clamp(min=0).long()) > 0
        labeled_BT = batch.labels if self._config.objective != "orpo" else next_tokens(batch)
        return chosen_BT & (labeled_BT != IGNORE_INDEX)


def reference_logps(model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
    """Log-probabilities (B, S) of the answers under the reference model."""
    with reference_model(model):
        return sum_conversations(*label_logps(model, batch, batch.labels, chunk=chunk, varlen=varlen), batch)


@contextlib.contextmanager
def reference_model(model: LanguageModel) -> Iterator[None]:
    """Context in which the model computes without its adapter, dropout and gradients."""
    with torch.no_grad(), evaluating(model), adapters_disabled(model):
        yield


@contextlib.contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Context in which the model computes without dropout."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def all_reference_logps(model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
    """The rows of `ReferenceLogps` for a batch."""
    parts = [batch] if batch.mismatched is None else [batch, batch.mismatched]
    return torch.cat([reference_logps(model, part, chunk=chunk, varlen=varlen) for part in parts], dim=1)


@torch.no_grad()
def kl_estimate(model: LanguageModel, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
    """KTO's estimate of the KL divergence from the reference, 0-dim, not negative: the mean log-ratio of answers to
    other prompts.
    """
    others = batch.mismatched
    assert others is not None
    logps_R, rows_R = label_logps(model, others, others.labels, chunk=chunk, varlen=varlen)
    reference_BS = others.reference
    if reference_BS is None:
        reference_BS = reference_logps(model, others, chunk=chunk, varlen=varlen)
    return (sum_conversations(logps_R, rows_R, others) - reference_BS).mean().clamp(min=0)


def label_logps(
    model: LanguageModel,
    batch: Batch,
    labels_BT: Tensor,
    *,
    chunk: int = 0,
    varlen: bool = False,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (R,) of the labels that count, and the numbers (R,) of their positions in the batch (B * T).
    Logits are divided by `temperature`.
    """
    computed = replace(batch, labels=labels_BT)
    if varlen:
        computed = computed.without_padding()
        hidden = model.forward_hidden(
            computed.input_ids, positions_BT=computed.positions, cu_seqlens=computed.cu_seqlens
        )
    else:
        mask = None if batch.segments is None else document_mask(batch.segments)
        hidden = model.forward_hidden(computed.input_ids, positions_BT=computed.positions, mask_B1TS=mask)
    count = batch.loss_tokens if labels_BT is batch.labels else None
    counted_R = labeled_rows(computed.labels.flatten(), count)
    hidden_RD, labels_R = hidden.flatten(0, -2)[counted_R], computed.labels.flatten()[counted_R]
    if model.has_plain_head:
        hidden_RD = hidden_RD if temperature == 1 else hidden_RD / temperature
        logps_R = linear_token_logps(hidden_RD, model.head.weight, labels_R, chunk or len(labels_R) or 1)
    else:
        logps_R = -F.cross_entropy(model.logits(hidden_RD).float() / temperature, labels_R, reduction="none")
    return logps_R, labeled_rows(labels_BT.flatten(), count) if varlen else counted_R


def sum_conversations(values_R: Tensor, rows_R: Tensor, batch: Batch) -> Tensor:
    """Sums (B, S) over the conversations of values at positions `rows_R`."""
    batch = with_segments(batch)
    assert batch.segments is not None
    assert batch.preference is not None
    shape = batch.preference.shape
    numbers_BT = batch.segments + shape[1] * torch.arange(shape[0], device=rows_R.device)[:, None]
    sums = values_R.new_zeros(shape.numel())
    return sums.index_add(0, numbers_BT.flatten()[rows_R], values_R).view(shape)


def next_tokens(batch: Batch) -> Tensor:
    """The token (B, T) after each position in its conversation, also where it is no label; at the last position only if
    it is.
    """
    assert batch.segments is not None
    follows = F.pad(batch.segments[:, 1:] == batch.segments[:, :-1], (0, 1)) & (batch.segments >= 0)
    shifted = batch.input_ids.roll(-1, dims=1)
    return torch.where(follows & (batch.labels == IGNORE_INDEX), shifted, batch.labels)
