"""Evaluation: loss on validation data and, for prompt/response data, quality of generated answers.

Nothing here draws from a global generator, so evaluation never changes training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import Tensor

from trainer_core.data.batch import Batch
from trainer_core.data.order import Indices, fixed_sample
from trainer_core.evaluation import scores
from trainer_core.generation.generate import GREEDY, Completion, SamplingParams, generate_batch
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import Reporter
from trainer_core.protocol import Eval
from trainer_core.rewards.functions import Answer
from trainer_core.rewards.rewards import Rewards
from trainer_core.train.device import Precision
from trainer_core.train.oom import is_out_of_memory, release_memory
from trainer_core.train.preferences import reward_means
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup

T = TypeVar("T")

_MAX_ROWS: Final = 64  # per batch of prompts
REFERENCE_LENGTHS: Final = 2
"""Default limit of an answer in lengths of its reference: enough to see a model that does not stop."""
_SAMPLE_KEY: Final = 0x6576616C  # "eval"


@dataclass(frozen=True, slots=True)
class AnswerQuality:
    """Quality of answers to validation prompts. Fields of the event."""

    exact_match: float  # 0..1
    bleu4: float  # 0..100
    examples: int
    truncated_by_limit: int
    truncated_by_context: int
    reward: float | None = None  # mean, of a run that learns from rewards


def validation_sample(available: int, size: int) -> Indices:
    """Numbers of the sequences that each evaluation reads, ascending: `size` of `available`, drawn uniformly.

    Depends only on these counts, so losses of runs with different seeds on the same data are comparable.
    """
    return fixed_sample(available, size, _SAMPLE_KEY)


class EvaluationPass:
    """One pass over the validation sample: `total` batches on all ranks, of which `batches` are this rank's.

    The loss is the mean over all tokens (or pairs), however they are distributed over batches and ranks.

    `loss_of` computes the losses as training does (`OomHandler.with_recovery` of `Engine.eager_loss`), so evaluation
    needs no more memory. Sums stay on the device until the end.
    """

    def __init__(
        self,
        model: LanguageModel,
        batches: Iterable[Batch],
        total: int,
        device: torch.device,
        precision: Precision,
        loss_of: Callable[[Batch | None], Tensor],
        step: int,
        group: ProcessGroup = SINGLE_PROCESS,
        num_losses: int = 1,
    ) -> None:
        """`num_losses`: values of `Engine.loss`."""
        self._model, self._device, self._precision, self._step = model, device, precision, step
        self._batches = iter(batches)
        self._total, self._loss_of, self._group = total, loss_of, group
        self._counts = torch.zeros(2, dtype=torch.float64, device=device)  # weight of the loss, tokens
        self._losses = torch.zeros(num_losses, dtype=torch.float64, device=device)
        self._since = time.perf_counter()

    def run(self, reporter: Reporter, poll: Callable[[], None]) -> Eval:
        """Run the whole pass, on all ranks. `poll` is collective."""
        for done in range(0, self._total, self._group.world_size):
            poll()
            self._evaluate_next()
            finished = min(done + self._group.world_size, self._total)
            reporter.progress("evaluating", finished, self._total, "batches")
        return self._result()

    @torch.no_grad()
    def _evaluate_next(self) -> None:
        """Evaluate this rank's next batch. Collective."""
        batch = next(self._batches, None)
        self._model.eval()
        try:
            with self._precision.autocast():
                losses = self._loss_of(batch.to(self._device) if batch else None).double().view(-1)
        finally:
            self._model.train()
        self._losses = self._losses + losses
        self._counts += self._counts.new_tensor([batch.loss_weight, batch.loss_tokens] if batch else [0, 0])

    def _result(self) -> Eval:
        """Result over all ranks, when all batches are done."""
        sums = torch.cat((self._counts, self._losses))
        self._group.sum(sums)
        weight, tokens, summed, *rewards = sums.tolist()
        mean = summed / max(1, weight)
        loss = mean if math.isfinite(mean) else None
        return Eval(
            step=self._step,
            loss=loss,
            perplexity=None if loss is None or rewards else math.exp(min(loss, 700.0)),
            tokens=int(tokens),
            seconds=time.perf_counter() - self._since,
            **(reward_means(rewards) if rewards else {}),
        )


def answer_quality(
    answers: Sequence[Completion], texts: Sequence[str], references: Sequence[str], rewards: Rewards | None = None
) -> AnswerQuality:
    """Exact match and corpus BLEU-4, see `evaluation.scores`, and the mean reward. `texts` are the decoded answers."""
    stops = [answer.finish_reason for answer in answers]
    matches = sum(map(scores.is_exact, texts, references, stops))
    score = scores.bleu().corpus_score(list(texts), [list(references)]).score
    share = matches / max(1, len(texts))
    reward = None
    if rewards is not None and texts:
        reward = rewards.mean([Answer(*found) for found in zip(texts, references, stops, strict=True)])
    return AnswerQuality(share, score, len(texts), stops.count("limit"), stops.count("context"), reward)


def answer_tokens(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    ends: frozenset[int],
    max_positions: int,
    poll: Callable[[], None],
    on_answered: Callable[[int], None] = lambda count: None,
    samplings: Sequence[SamplingParams] = (),
    max_rows: int = _MAX_ROWS,
) -> list[Completion]:
    """Generate answers of up to `limits[i]` tokens, in batches of similar length; greedily without `samplings`.

    A batch has at most `max_positions` tokens in its KV cache, but at least one row; one that does not fit into memory
    is split. A prompt without room in the context has an empty, truncated answer. `on_answered` is called with the
    number of answers after each batch.
    """
    window = model.config.max_seq_len
    lengths = [min(len(prompt) + limit, window) for prompt, limit in zip(prompts, limits, strict=True)]
    answers = [Completion() for _ in prompts]
    waiting = [row for row, prompt in enumerate(prompts) if len(prompt) < window]

    def generate(rows: list[int]) -> list[Completion]:
        own_prompts, own_limits = [prompts[row] for row in rows], [limits[row] for row in rows]
        return generate_batch(
            model, own_prompts, own_limits, ends, poll, [samplings[row] for row in rows] if samplings else GREEDY
        )

    device, done = model.head.weight.device, len(prompts) - len(waiting)
    model.eval()
    try:
        for rows, found in in_batches(waiting, lengths, max_positions, device, generate, max_rows):
            for row, answer in zip(rows, found, strict=True):
                answers[row] = answer
            done += len(rows)
            on_answered(done)
    finally:
        model.train()
    return answers


def in_batches(
    rows: Iterable[int],
    lengths: Sequence[int],
    max_positions: int,
    device: torch.device,
    compute: Callable[[list[int]], T],
    max_rows: int = _MAX_ROWS,
) -> Iterator[tuple[list[int], T]]:
    """Compute rows in batches of similar length, of at most `max_positions` positions but at least one row.

    `lengths[row]`: positions of a row. A batch that does not fit into memory is split. Yields rows and result.
    """
    waiting = sorted(rows, key=lambda row: lengths[row], reverse=True)  # largest first: later ones then fit, too
    while waiting:
        batch = waiting[: max(1, min(max_rows, max_positions // lengths[waiting[0]]))]
        found: list[T] = []
        try:
            found.append(compute(batch))
        except Exception as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
        if not found:  # outside of the handler: the traceback references the tensors
            max_rows = len(batch) // 2
            release_memory(device)
            continue
        del waiting[: len(batch)]
        yield batch, found.pop()
