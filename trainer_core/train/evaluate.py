"""How good the model is: loss on held-out data; for prompt/response data, answers compared with the real ones.

Nothing here draws from a global generator, so evaluating never changes what training does next.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.data.batches import Batch
from trainer_core.generate import answer_all
from trainer_core.model.decoder import Decoder
from trainer_core.report import Reporter
from trainer_core.train.device import Precision
from trainer_core.train.loss import batch_loss, token_loss

__all__ = ["Answers", "Loss", "answer_quality", "answer_tokens", "batch_loss", "held_out_loss", "token_loss"]

_PROMPTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean negative log-likelihood per token that counts, in nats."""

    mean: float
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.mean, 700.0))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to held-out prompts against the real ones."""

    exact_match: float  # 0..1
    bleu4: float  # 0..100
    examples: int
    texts: list[str]


@torch.no_grad()
def held_out_loss(
    model: Decoder,
    batches: Iterable[Batch],
    total: int,
    device: torch.device,
    precision: Precision,
    reporter: Reporter,
    loss_of: Callable[[Batch], Tensor] | None = None,
) -> Loss:
    """Loss over at most `total` batches. Sums stay on the device until the end. `loss_of`: how training computes it
    (`Engine.eager_loss`), so that evaluating needs no more memory; None: the reference."""
    since = time.perf_counter()
    summed, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    model.eval()
    try:
        for done, batch in enumerate(itertools.islice(batches, total)):
            reporter.poll()
            with precision.autocast():
                summed += loss_of(batch.to(device)) if loss_of else batch_loss(model, batch.to(device))
            tokens += batch.tokens
            reporter.progress("evaluating", done + 1, total, "batches")
    finally:
        model.train()
    return Loss(float(summed) / max(1, tokens), tokens, time.perf_counter() - since)


def answer_quality(texts: Sequence[str], references: Sequence[str]) -> Answers:
    """Exact match after trimming white space, and corpus BLEU-4 (Papineni et al. 2002; sacrebleu's `zh`
    tokenisation, which keeps Latin words whole and takes Chinese characters one by one)."""
    from sacrebleu.metrics.bleu import BLEU

    matches = sum(text.strip() == reference.strip() for text, reference in zip(texts, references, strict=True))
    bleu = BLEU(tokenize="zh", effective_order=True)
    score = bleu.corpus_score(list(texts), [list(references)]).score
    return Answers(matches / max(1, len(texts)), score, len(texts), list(texts))


def answer_tokens(
    model: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int, ends: frozenset[int], reporter: Reporter
) -> list[list[int]]:
    """The likeliest answers to all prompts, a bounded number at a time."""
    answers: list[list[int]] = []
    model.eval()
    try:
        for start in range(0, len(prompts), _PROMPTS_AT_ONCE):
            chunk = prompts[start : start + _PROMPTS_AT_ONCE]
            growing: list[list[int]] = [[] for _ in chunk]
            for growing in answer_all(model, chunk, max_tokens, ends):  # noqa: B007 - the last one counts
                reporter.poll()
            answers += growing
    finally:
        model.train()
    return answers
