"""Advantages and losses of answers that were rewarded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.core.test_model import FAMILIES, random_decoder
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.models.decoder import Decoder
from trainer_core.rewards.functions import Answer
from trainer_core.train.grpo import PolicyLoss, group_advantages, policy_means
from trainer_core.train.rollouts import AnsweredPrompt, Generated, Prompt, batch_answers, read_prompts

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [2.0, 0.0, 0.0, 0.0]])
OLD_LOGP = -4.0  # of each token, far from those of the model: some tokens are clipped


def answered(old: bool = False) -> Batch:
    """Four answers of different lengths."""
    generator = torch.Generator().manual_seed(2)
    sequences = []
    for length, advantage in ((5, 1.0), (2, -0.4), (9, 0.7), (1, -1.2)):
        tokens = torch.randint(0, 90, (3 + length,), generator=generator).tolist()
        sequences.append(AnsweredPrompt(tokens[:3], tokens[3:], advantage, [OLD_LOGP] * length if old else None))
    return batch_answers(sequences, 96)


def reference_loss(model: Decoder, batch: Batch, config: Config) -> float:
    """The formulas of the papers, token by token."""
    logps = (model(batch.input_ids).float() / config.rollout_temperature).log_softmax(-1)
    sums = []
    for row, advantage in enumerate(batch.advantages.tolist()):  # type: ignore[union-attr]
        labeled = [(t, int(label)) for t, label in enumerate(batch.labels[row]) if label != IGNORE_INDEX]
        losses = []
        for position, token in labeled:
            logp = logps[row, position, token].item()
            ratio = math.exp(logp - (logp if batch.old_logps is None else OLD_LOGP))
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            losses.append(-min(ratio * advantage, clipped * advantage))
        sums.append(sum(losses) / (len(losses) if config.policy_loss == "grpo" else 1))
    return sum(sums)


def policy_loss(model: Decoder, batch: Batch, config: Config, **options: Any) -> torch.Tensor:
    return PolicyLoss(config)(model, batch, **options)


def gradients(model: Decoder, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def test_advantages_are_relative_to_the_group() -> None:
    centered = REWARDS - REWARDS.mean(1, keepdim=True)
    torch.testing.assert_close(group_advantages(REWARDS, "none"), centered)
    torch.testing.assert_close(group_advantages(REWARDS, "batch"), centered / (REWARDS.std() + 1e-4))
    scaled = group_advantages(REWARDS, "group")
    torch.testing.assert_close(scaled[2], centered[2] / (1.0 + 1e-4))
    assert scaled[1].tolist() == [0.0] * 4
    assert not group_advantages(torch.full((2, 3), 0.9), "group").any(), "their mean is rounded"


def test_log_probabilities_of_generated_answers_have_no_dropout() -> None:
    model, batch = random_decoder(replace(FAMILIES["qwen3"], dropout=0.5)), answered()
    first, second = (PolicyLoss(Config()).label_logps(model.train(), batch) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("old", [False, True])
def test_the_loss_is_that_of_the_papers(kind: Any, old: bool) -> None:
    model, batch = random_decoder(FAMILIES["qwen3"]), answered(old)
    config = Config(policy_loss=kind, clip_low=0.2, clip_high=0.28, rollout_temperature=0.7)
    loss, *sums = policy_loss(model, batch, config).tolist()
    assert loss == pytest.approx(reference_loss(model, batch, config), rel=1e-4)
    means = policy_means(sums)
    assert sums[0] == batch.loss_tokens == 17
    assert (means["clip_ratio"] > 0) == old
    assert means["kl"] == 0


def test_chunks_and_smaller_batches_change_nothing() -> None:
    model, batch, config = random_decoder(FAMILIES["llama"]), answered(old=True), Config(policy_loss="grpo")
    whole = policy_loss(model, batch, config)
    expected = gradients(model, whole[0])
    parts = [policy_loss(model, part, config, chunk=4) for part in batch.split_rows(1)]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole, rtol=1e-4, atol=1e-5)
    for found, wanted in zip(gradients(model, torch.stack(parts).sum(0)[0]), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_log_probabilities_of_labels_are_at_their_positions() -> None:
    model, batch = random_decoder(FAMILIES["llama"]), answered()
    found = PolicyLoss(Config()).label_logps(model, batch, chunk=3)
    expected = model(batch.input_ids).log_softmax(-1).gather(2, batch.labels.clamp(min=0)[..., None])[..., 0]
    labeled = batch.labels != IGNORE_INDEX
    torch.testing.assert_close(found[labeled], expected[labeled], rtol=1e-4, atol=1e-5)
    assert not found[~labeled].any()


def test_a_prompt_is_what_precedes_the_last_answer() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 0], [7, 8, 9, 0, 0, 0, 0, 0]])
    none = IGNORE_INDEX
    labels = torch.tensor([[none, 3, none, none, 6, 99, none, none], [8, 9, 99, none, none, none, none, none]])
    prompts = list(read_prompts(Batch(ids, labels, loss_tokens=6, samples=2)))
    assert prompts == [Prompt([1, 2, 3, 4, 5], [6, 99]), Prompt([7], [8, 9, 99])]


def test_answers_of_an_event_fit_a_line_of_the_protocol() -> None:
    text = "答" * 3000
    answers = [Answer(text, "参考", "end")] * 64
    generated = Generated([[1]] * 64, answers, [[1.0]] * 64, [1.0] * 64, ["问"] * 64)
    event = generated.summarize(1, ["exact"], 32, 1.0)
    assert len(event.samples) == 33
    assert len(protocol.encode(event)) < 2**20
