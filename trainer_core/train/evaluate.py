"""How good the model is: loss on held-out data; for prompt/response data, answers compared with the real ones.

Nothing here draws from a global generator, so evaluating never changes what training does next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer_core.data.batches import Batch
from trainer_core.data.order import Indices, fixed_sample
from trainer_core.generate import Answer, answer_all
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import Eval
from trainer_core.report import Reporter
from trainer_core.train.device import Precision
from trainer_core.train.loss import batch_loss, token_loss
from trainer_core.train.oom import give_back, is_out_of_memory
from trainer_core.train.ranks import ALONE, Ranks

__all__ = [
    "Answers",
    "HeldOut",
    "Loss",
    "answer_quality",
    "answer_tokens",
    "batch_loss",
    "token_loss",
    "told",
    "validation_sample",
]

_MAX_ROWS: Final = 64  # of a batch of prompts
_SAMPLE_KEY: Final = 0x6576616C  # "eval"


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean negative log-likelihood per token that counts, in nats."""

    mean: float | None  # None: not a finite number, which compares with nothing
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float | None:
        return None if self.mean is None else math.exp(min(self.mean, 700.0))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to held-out prompts compared with the references."""

    exact_match: float  # 0..1
    bleu4: float  # 0..100
    examples: int
    cut_by_limit: int
    cut_by_context: int


def validation_sample(available: int, size: int) -> Indices:
    """Numbers of the sequences that each evaluation reads, ascending: `size` of the `available` ones, drawn uniformly.

    Depends on nothing but these counts, so runs with different seeds over the same data have comparable losses.
    """
    return fixed_sample(available, size, _SAMPLE_KEY)


class HeldOut:
    """One pass over the validation sample: `total` batches on all ranks together, of which `batches` are this rank's.

    The loss is the mean over all tokens, however they fall into batches and onto ranks.

    `loss_of` is how training computes the loss (`Ladder.loss_of` of `Engine.eager_loss`), so that evaluating needs no
    more memory. Sums stay on the device until the end.
    """

    def __init__(
        self,
        model: Decoder,
        batches: Iterable[Batch],
        total: int,
        device: torch.device,
        precision: Precision,
        loss_of: Callable[[Batch | None], Tensor],
        ranks: Ranks = ALONE,
    ) -> None:
        self._model, self._device, self._precision = model, device, precision
        self._batches = iter(batches)
        self._total, self._loss_of, self._ranks = total, loss_of, ranks
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, tokens
        self._since = time.perf_counter()

    def run(self, reporter: Reporter) -> Loss:
        """Rank 0: the whole pass, which the others take part in."""
        for done in range(0, self._total, self._ranks.size):
            reporter.poll()
            self._ranks.tell("evaluate")
            self.take()
            reporter.progress("evaluating", min(done + self._ranks.size, self._total), self._total, "batches")
        self._ranks.tell("evaluated")
        return self.result()

    @torch.no_grad()
    def take(self) -> None:
        """The next batch of this rank. All ranks at once."""
        batch = next(self._batches, None)
        self._model.eval()
        try:
            with self._precision.autocast():
                self._sums[0] += self._loss_of(batch.to(self._device) if batch else None)
        finally:
            self._model.train()
        self._sums[1] += batch.tokens if batch else 0

    def result(self) -> Loss:
        """Of all ranks together, when all have taken all."""
        self._ranks.add_up([self._sums])
        summed, tokens = self._sums.tolist()
        mean = summed / max(1, tokens)
        return Loss(mean if math.isfinite(mean) else None, int(tokens), time.perf_counter() - self._since)


def told(step: int, loss: Loss, best: bool, answers: Answers | None) -> Eval:
    """An evaluation as an event."""
    return Eval(
        step=step,
        loss=loss.mean,
        perplexity=loss.perplexity,
        tokens=loss.tokens,
        seconds=loss.seconds,
        best=best,
        bleu4=answers.bleu4 if answers else None,
        exact_match=answers.exact_match if answers else None,
        examples=answers.examples if answers else 0,
        cut_by_limit=answers.cut_by_limit if answers else 0,
        cut_by_context=answers.cut_by_context if answers else 0,
    )


def answer_quality(answers: Sequence[Answer], texts: Sequence[str], references: Sequence[str]) -> Answers:
    """Exact match after trimming white space, and corpus BLEU-4 (Papineni et al. 2002; sacrebleu's `zh`
    tokenisation, which keeps Latin words whole and takes Chinese characters one by one).

    `texts` are the decoded answers. An answer that was cut is no exact match.
    """
    from sacrebleu.metrics.bleu import BLEU

    stops = [answer.stop for answer in answers]
    matches = sum(
        stop == "end" and text.strip() == reference.strip()
        for stop, text, reference in zip(stops, texts, references, strict=True)
    )
    bleu = BLEU(tokenize="zh", effective_order=True)
    score = bleu.corpus_score(list(texts), [list(references)]).score
    share = matches / max(1, len(texts))
    return Answers(share, score, len(texts), stops.count("limit"), stops.count("context"))


def answer_tokens(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    ends: frozenset[int],
    max_positions: int,
    reporter: Reporter,
) -> list[Answer]:
    """Greedy answers of up to `limits[i]` tokens, in batches of similar length.

    A batch has at most `max_positions` tokens in its cache, but at least one row; one that does not fit into memory is
    split. A prompt that leaves no room in the context has an empty answer, cut by the context.
    """
    window = model.config.max_seq_len
    lengths = [min(len(prompt) + limit, window) for prompt, limit in zip(prompts, limits, strict=True)]
    answers = [Answer() for _ in prompts]
    waiting = [row for row, prompt in enumerate(prompts) if len(prompt) < window]
    waiting.sort(key=lambda row: lengths[row], reverse=True)  # the largest first: the rest then fits, too
    max_rows = _MAX_ROWS
    model.eval()
    try:
        while waiting:
            rows = waiting[: max(1, min(max_rows, max_positions // lengths[waiting[0]]))]
            found = None
            try:
                found = answer_all(
                    model, [prompts[row] for row in rows], [limits[row] for row in rows], ends, reporter.poll
                )
            except Exception as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
            if found is None:  # not in the handler: the traceback holds the tensors
                max_rows = len(rows) // 2
                give_back(model.lm_head.weight.device)
                continue
            del waiting[: len(rows)]
            for row, answer in zip(rows, found, strict=True):
                answers[row] = answer
    finally:
        model.train()
    return answers
