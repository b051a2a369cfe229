"""Losses and greedy answers of a model, row by row.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer_core.data.batch import IGNORE_INDEX
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import Document
from trainer_core.evaluation.report import RowResult
from trainer_core.evaluation.rows import Conversation, in_context
from trainer_core.generation.generate import LoadedModel
from trainer_core.messages import TraindeckError
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import Reporter
from trainer_core.train.evaluate import REFERENCE_LENGTHS, answer_tokens, in_batches
from trainer_core.train.loss import linear_token_loss, token_loss

_MAX_POSITIONS: Final = 8192  # per batch, in the KV cache or in a forward pass
_LOGIT_ROWS: Final = 512  # positions whose logits exist at once
_MAX_TEXT_WINDOW: Final = 2048  # tokens of a text that are evaluated together


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row as tokens. `in_loss`: [start, stop) of the tokens in the loss. Prompt and reference: of conversations."""

    ids: list[int]
    in_loss: list[tuple[int, int]]
    prompt: Sequence[int] = ()
    reference: str = ""
    reference_tokens: int = 0  # including the end token


def encode(
    loaded: LoadedModel, document: Document, system: str = "", examples: Sequence[Conversation] = ()
) -> EncodedRow | None:
    """A row for a model. None: the chat template cannot write it.

    Of a text, all tokens with a predecessor are in the loss; of a conversation, its answers but not those of the
    `examples`, which follow the `system` prompt. Its last answer is the reference.

    Raises `data.bad_template`, and `evaluate.no_template` for a template with tokens that the model lacks.
    """
    model, codec, _ = loaded
    if not document.turns:
        ids = [*codec.prefix_ids, *codec.encode(document.text)]
        return EncodedRow(ids, [(max(1, len(codec.prefix_ids)), len(ids))])
    try:
        turns = codec.drop_unsupported_calls(in_context(document.turns, system, examples))
        alone = codec.encode_chats([in_context(document.turns, system, ())])[0]
        whole, prompt = codec.encode_chats([turns])[0], codec.encode_prompt(turns[:-1])
    except TraindeckError as error:
        if error.code != "data.chat_refused":
            raise
        return None
    if not alone.spans:
        return None
    ids, spans = whole.ids.tolist(), whole.spans[-len(alone.spans) :]
    if max(ids) >= model.embedding.weight.shape[0]:
        raise TraindeckError("evaluate.no_template")
    answer = ids[slice(*spans[-1])]
    return EncodedRow(ids, spans, prompt, codec.decode(answer), len(answer))


def run_model(
    loaded: LoadedModel, rows: Sequence[EncodedRow], task: Task, max_new_tokens: int, window: int, reporter: Reporter
) -> list[RowResult]:
    """Losses of all rows, and with the task sft greedy answers of up to `max_new_tokens` (0: twice the reference).

    `window`: tokens after which a conversation is cut for its loss, as in training, and of which the windows of a text
    consist; 0: those of the model. Progress counts documents.
    """
    total = len(rows) * (2 if task == "sft" else 1)

    def progress(done: int) -> None:
        reporter.progress("evaluating", done, total, "documents")

    results = [RowResult(reference=row.reference) for row in rows]
    _compute_losses(loaded.model, rows, results, task, window, progress, reporter)
    if task == "sft":
        limits = [max_new_tokens or REFERENCE_LENGTHS * row.reference_tokens for row in rows]
        prompts, ends = [row.prompt for row in rows], loaded.codec.stop_token_ids
        answers = answer_tokens(
            loaded.model, prompts, limits, ends, _MAX_POSITIONS, reporter.poll, lambda done: progress(len(rows) + done)
        )
        for result, answer in zip(results, answers, strict=True):
            result.answer, result.finish_reason = loaded.codec.decode(answer.tokens), answer.finish_reason
    return results


def _compute_losses(
    model: LanguageModel,
    rows: Sequence[EncodedRow],
    results: Sequence[RowResult],
    task: Task,
    window: int,
    progress: Callable[[int], None],
    reporter: Reporter,
) -> None:
    """Set `loss` and `tokens` of the results."""
    width = min(window or model.config.max_seq_len, model.config.max_seq_len)
    width = width if task == "sft" else min(width, _MAX_TEXT_WINDOW)
    sequences = [(number, part) for number, row in enumerate(rows) for part in _windows(row, width, task == "sft")]
    device, done = model.head.weight.device, 0
    lengths = [len(part[0]) for _, part in sequences]

    def compute(batch: list[int]) -> list[float]:
        reporter.poll()
        return _summed_losses(model, [sequences[index][1] for index in batch])

    model.eval()
    for batch, losses in in_batches(range(len(sequences)), lengths, _MAX_POSITIONS, device, compute):
        for index, loss in zip(batch, losses, strict=True):
            number, (_, labels) = sequences[index]
            results[number].loss += loss
            results[number].tokens += sum(label != IGNORE_INDEX for label in labels)
        done += len(batch)
        progress(done * len(rows) // len(sequences))


_Sequence = tuple[list[int], list[int]]  # inputs and labels


def _windows(row: EncodedRow, width: int, first_only: bool) -> list[_Sequence]:
    """Consecutive windows of a row that have tokens in the loss."""
    labels = [IGNORE_INDEX] * len(row.ids)
    for start, stop in row.in_loss:
        labels[start:stop] = row.ids[start:stop]
    starts = range(0, 1 if first_only else len(row.ids) - 1, width)
    found = [(row.ids[:-1][start : start + width], labels[1:][start : start + width]) for start in starts]
    return [(ids, own) for ids, own in found if any(label != IGNORE_INDEX for label in own)]


@torch.no_grad()
def _summed_losses(model: LanguageModel, sequences: Sequence[_Sequence]) -> list[float]:
    """Loss of each sequence, summed over its labels. Padding on the right has no effect on a causal model."""
    width, device = max(len(ids) for ids, _ in sequences), model.head.weight.device
    ids_BT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _ in sequences], device=device)
    labels_BT = torch.tensor(
        [[*labels, *[IGNORE_INDEX] * (width - len(labels))] for _, labels in sequences], device=device
    )
    hidden_BTD = model.forward_hidden(ids_BT)
    return torch.stack([_summed_loss(model, *pair) for pair in zip(hidden_BTD, labels_BT, strict=True)]).tolist()


def _summed_loss(model: LanguageModel, hidden_TD: Tensor, labels_T: Tensor) -> Tensor:
    if model.has_plain_head:
        return linear_token_loss(hidden_TD, model.head.weight, labels_T, _LOGIT_ROWS)
    counted_T = labels_T != IGNORE_INDEX
    return token_loss(model.logits(hidden_TD[counted_T])[None], labels_T[counted_T][None])
