"""Losses of pairs equal those of whole logits, conversation by conversation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.core.shapes import model_shape
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, PADDING_SEGMENT, Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.train.preferences import AnswerLogps, PreferenceLoss, orpo_loss, reference_logps, reward_means

VOCABULARY, BETA, MARGIN = 61, 0.4, 0.3
Conversation = tuple[list[int], int]  # tokens, and how many of them are the answer
Pair = tuple[Conversation, Conversation]


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    built = Decoder(model_shape(VOCABULARY, 32, 2, max_seq_len=32, tie_embeddings=False))
    for weight in built.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return built


def random_pairs(count: int, seed: int = 0) -> list[Pair]:
    generator = np.random.default_rng(seed)

    def conversation(prompt: list[int]) -> Conversation:
        answer = generator.integers(1, VOCABULARY, generator.integers(1, 7)).tolist()
        return [*prompt, *answer], len(answer)

    prompts = [generator.integers(1, VOCABULARY, generator.integers(1, 9)).tolist() for _ in range(count)]
    return [(conversation(prompt), conversation(prompt)) for prompt in prompts]


def batch_of(rows: list[list[Pair]]) -> Batch:
    """One micro-batch whose sequences hold these pairs."""
    conversations = [[one for pair in row for one in pair] for row in rows]
    lengths = tuple(tuple(len(tokens) - 1 for tokens, _ in row) for row in conversations)
    width, most = max(map(sum, lengths)) + 3, max(map(len, lengths))
    ids, labels = torch.zeros(len(rows), width, dtype=torch.int64), torch.full((len(rows), width), IGNORE_INDEX)
    segments, positions = torch.full((len(rows), width), PADDING_SEGMENT, dtype=torch.int32), torch.zeros_like(ids)
    preference = torch.zeros(len(rows), most, dtype=torch.int8)
    for number, row in enumerate(conversations):
        start = 0
        for index, (tokens, answer) in enumerate(row):
            place = slice(start, start + len(tokens) - 1)
            ids[number, place], segments[number, place] = torch.tensor(tokens[:-1]), index
            positions[number, place] = torch.arange(len(tokens) - 1)
            labels[number, place.stop - answer : place.stop] = torch.tensor(tokens[-answer:])
            preference[number, index] = 1 - 2 * (index % 2)
            start = place.stop
    return Batch(
        ids,
        labels,
        loss_tokens=int((labels != IGNORE_INDEX).sum()),
        samples=sum(map(len, rows)),
        segments=segments,
        positions=positions,
        row_documents=lengths,
        preference=preference,
        pairs=sum(map(len, rows)),
    )


def naive_logps(model: Decoder, conversation: Conversation, prompt_too: bool = False) -> Tensor:
    """Log-probabilities of the answer's tokens, or of all tokens but the first."""
    tokens, answer = conversation
    logits = model.logits(model.forward_hidden(torch.tensor([tokens[:-1]])))[0]
    logps = F.log_softmax(logits.float(), -1).gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)
    return logps if prompt_too else logps[len(logps) - answer :]


def naive_loss(model: Decoder, objective: str, pairs: list[Pair], smoothing: float, sft: float) -> Tensor:
    """The mean loss as the papers state it, for a reference whose log-probabilities are all -3."""
    losses = []
    for pair in pairs:
        chosen, rejected = (naive_logps(model, one) for one in pair)
        ratios = [one.sum() + 3 * len(one) for one in (chosen, rejected)]
        if objective == "ipo":
            losses.append((ratios[0] / len(chosen) - ratios[1] / len(rejected) - 1 / (2 * BETA)) ** 2)
        elif objective == "orpo":
            odds = [one.mean().exp() / (1 - one.mean().exp()) for one in (chosen, rejected)]
            losses.append(-BETA * F.logsigmoid(torch.log(odds[0] / odds[1])))
        else:
            simpo = BETA * (chosen.mean() - rejected.mean()) - MARGIN
            margin = simpo if objective == "simpo" else BETA * (ratios[0] - ratios[1])
            losses.append(-(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin))
    texts = torch.cat([naive_logps(model, chosen, objective == "orpo") for chosen, _ in pairs])
    return torch.stack(losses).mean() - (1.0 if objective == "orpo" else sft) * texts.mean()


def preference_loss(objective: str, **knobs: Any) -> PreferenceLoss:
    return PreferenceLoss(Config(objective=objective, preference_beta=BETA, simpo_margin=MARGIN, **knobs))


def with_reference(batch: Batch) -> Batch:
    """The batch with a reference that gives each token a log-probability of -3."""
    assert batch.preference is not None
    assert batch.segments is not None
    counts = torch.zeros(batch.preference.shape)
    labeled = batch.labels != IGNORE_INDEX
    rows = torch.arange(len(counts))[:, None].expand_as(batch.labels)
    counts.index_put_((rows[labeled], batch.segments[labeled].long()), torch.ones(()), accumulate=True)
    return replace(batch, reference=-3.0 * counts)


def gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("objective", ["dpo", "ipo", "orpo", "simpo"])
@pytest.mark.parametrize(("smoothing", "sft"), [(0.0, 0.0), (0.2, 0.7)])
@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_gradients_equal_the_formula(
    model: Decoder, objective: str, smoothing: float, sft: float, packed: bool
) -> None:
    pairs = random_pairs(5)
    batch = with_reference(batch_of([pairs[:2], pairs[2:]] if packed else [[pair] for pair in pairs]))
    loss = preference_loss(objective, label_smoothing=smoothing, sft_share=sft)
    loss.prepare([batch])
    found = loss(model, batch, chunk=4)[0] / batch.pairs
    expected = naive_loss(model, objective, pairs, smoothing, sft)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(model, found), gradients(model, expected), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("objective", ["dpo", "orpo"])
def test_micro_batches_add_up_to_the_loss_of_the_step(model: Decoder, objective: str) -> None:
    pairs = random_pairs(5)
    parts = [with_reference(batch_of([[pair] for pair in part])) for part in (pairs[:1], pairs[1:])]
    loss = preference_loss(objective, sft_share=0.5)
    loss.prepare(parts)
    found = sum(loss(model, part, chunk=4)[0] for part in parts) / 5
    torch.testing.assert_close(found, naive_loss(model, objective, pairs, 0.0, 0.5), atol=1e-5, rtol=1e-5)


def test_variable_length_attention_gives_the_same_loss(model: Decoder) -> None:
    pairs = random_pairs(4)
    batch = with_reference(batch_of([pairs[:1], pairs[1:]]))
    expected = preference_loss("dpo")(model, batch)
    model.set_attention(BACKENDS["documents"].attend)
    try:
        torch.testing.assert_close(preference_loss("dpo")(model, batch, varlen=True), expected, atol=1e-5, rtol=1e-5)
    finally:
        model.set_attention(BACKENDS["sdpa"].attend)


def test_metrics_are_those_of_the_answers(model: Decoder) -> None:
    pairs = random_pairs(6)
    batch = with_reference(batch_of([[pair] for pair in pairs]))
    found = reward_means(preference_loss("dpo")(model, batch)[1:].tolist())
    with torch.no_grad():
        rewards = [[BETA * float((naive_logps(model, one) + 3).sum()) for one in pair] for pair in pairs]
    chosen, rejected = (sum(side) / len(side) for side in zip(*rewards, strict=True))
    assert found == pytest.approx(
        {
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "reward_margin": chosen - rejected,
            "reward_accuracy": sum(one > other for one, other in rewards) / len(pairs),
        },
        abs=1e-4,
    )


def test_without_an_adapter_the_reference_is_the_model_itself(model: Decoder) -> None:
    batch = batch_of([[pair] for pair in random_pairs(3)])
    loss, *sums = preference_loss("dpo")(model, batch).tolist()
    assert loss / 3 == pytest.approx(math.log(2), abs=1e-5)
    assert sums == pytest.approx([0, 3, 0, 3, 0, 3], abs=1e-4)
    with torch.no_grad():
        expected = torch.tensor([[naive_logps(model, one).sum() for one in pair] for pair in random_pairs(3)])
    torch.testing.assert_close(reference_logps(model, batch), expected, atol=1e-4, rtol=1e-5)


def test_an_answer_without_doubt_has_a_finite_gradient() -> None:
    logps = torch.zeros(2, requires_grad=True)
    chosen, rejected = (
        AnswerLogps(logps, torch.zeros(2), torch.ones(2)),
        AnswerLogps(2 * logps, torch.zeros(2), torch.ones(2)),
    )
    loss = orpo_loss(chosen, rejected, Config(objective="orpo")).sum()
    loss.backward()
    assert logps.grad is not None
    assert loss.isfinite()
    assert logps.grad.isfinite().all()
