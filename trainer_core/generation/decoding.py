"""Decoding with a KV cache: of one sequence, or of several at once that join and leave between steps.

Shapes: B batch, T new tokens, S cached tokens, V vocabulary, D model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import torch
from torch import Tensor

from trainer_core.generation.sampling import GREEDY, SamplingParams, sample_tokens
from trainer_core.models.decoder import Decoder
from trainer_core.models.kv_cache import RaggedKvCache
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig

_INITIAL_TOKENS: Final = 256  # of a batch, for which its cache has memory at first: limits may be that of the context


@torch.no_grad()
def generate_tokens(
    model: LanguageModel,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingParams,
    eos_token_ids: frozenset[int],
) -> Iterator[int]:
    """Stream new tokens, without the end token. When the context is full, its older half is discarded."""
    device, window = model.head.weight.device, model.config.max_seq_len
    seen = list(prompt)[-(window - 1) :]
    capacity = min(window, len(seen) + max_tokens)
    cache = model.new_cache(capacity)
    n_tokens = model.config.n_tokens  # the remaining rows are padding

    def next_logits(ids: list[int]) -> Tensor:
        hidden_BTD = model.forward_hidden(torch.tensor([ids], device=device), cache=cache)
        return model.logits(hidden_BTD[:, -1])[:, :n_tokens]

    logits_1V = next_logits(seen)
    for number in range(max_tokens):
        [token] = sample_tokens(logits_1V, [sampling], [number])
        if token in eos_token_ids:
            return
        yield token
        if number + 1 == max_tokens:
            return
        seen.append(token)
        if cache.length == window:
            seen = seen[-(window // 2) :]
            cache = model.new_cache(capacity)
            logits_1V = next_logits(seen)
        else:
            logits_1V = next_logits([token])


@dataclass(slots=True)
class Completion:
    """Tokens without the end token. `finish_reason`: an end token, the token limit, or a full context."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: Literal["end", "limit", "context"] = "context"
    end_token: int | None = None


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One sequence of a batch: a prompt shorter than the context, and its completion so far."""

    prompt: Sequence[int]
    limit: int  # tokens; the token after them may be an end token
    sampling: SamplingParams = GREEDY
    completion: Completion = field(default_factory=Completion)
    finished: bool = False

    def accept(self, token: int, ends: frozenset[int], window: int) -> None:
        """Add the next token, or finish."""
        room = window - len(self.prompt)
        self.finished = True
        if token in ends:
            self.completion.finish_reason, self.completion.end_token = "end", token
        elif len(self.completion.tokens) == min(self.limit, room):
            self.completion.finish_reason = "context" if room <= self.limit else "limit"
        else:
            self.completion.tokens.append(token)
            self.finished = False


class DecodingBatch(ABC):
    """Sequences that are decoded together. Each may join, and be removed, between two steps."""

    def __init__(self, model: LanguageModel, eos_token_ids: frozenset[int]) -> None:
        self._model, self._ends = model, eos_token_ids
        self.rows: list[DecodingRow] = []  # that have not finished

    @abstractmethod
    def add(self, rows: Sequence[DecodingRow]) -> None:
        """Compute the prompts of new rows, and sample the first token of each."""

    @abstractmethod
    def step(self) -> None:
        """Sample the next token of each row. Those that finish are removed."""

    @abstractmethod
    def remove(self, rows: Sequence[DecodingRow]) -> None:
        """Remove rows that have not finished."""


def new_batch(model: LanguageModel, eos_token_ids: frozenset[int]) -> DecodingBatch:
    """An empty batch. Its rows do not depend on each other, except for rounding."""
    return (RaggedBatch if isinstance(model, Decoder) else InterleavedBatch)(model, eos_token_ids)


class RaggedBatch(DecodingBatch):
    """One forward pass a step for all rows, which have different lengths. For our decoder."""

    _cache: RaggedKvCache

    @torch.no_grad()
    def add(self, rows: Sequence[DecodingRow]) -> None:
        """Equal prompts are computed once. They are padded on the right: attention is causal, so that has no effect."""
        model, device = self._model, self._model.head.weight.device
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(tuple(row.prompt) for row in rows))}
        lengths = [len(prompt) for prompt in numbers]
        capacity = min(self._positions(rows), max(lengths) + _INITIAL_TOKENS)
        cache = RaggedKvCache(cast(ModelConfig, model.config), lengths, capacity, model.head.weight)
        padded = [[*prompt, *[0] * (max(lengths) - len(prompt))] for prompt in numbers]
        hidden_BTD = model.forward_hidden(torch.tensor(padded, device=device), cache=cache)
        last_BD = hidden_BTD[torch.arange(len(lengths), device=device), cache.lengths_B - 1]
        if len(lengths) < len(rows):
            prompts_B = torch.tensor([numbers[tuple(row.prompt)] for row in rows], device=device)
            cache.select_rows(prompts_B)
            last_BD = last_BD[prompts_B]
        self._accept(last_BD, rows)
        if self.rows:
            cache, rows = self._cache.join(cache), [*self.rows, *rows]
        self._cache, self.rows = cache, list(rows)
        self._drop_finished()

    def _positions(self, rows: Sequence[DecodingRow]) -> int:
        """Positions that the longest row may have."""
        return max(min(self._model.config.max_seq_len, len(row.prompt) + row.limit) for row in rows)

    @torch.no_grad()
    def step(self) -> None:
        if self._cache.length == self._cache.capacity:
            self._cache.grow(min(self._positions(self.rows), 2 * self._cache.capacity))
        last_B = torch.tensor([row.completion.tokens[-1] for row in self.rows], device=self._cache.lengths_B.device)
        positions_BT = self._cache.lengths_B[:, None]
        slots_S = torch.arange(self._cache.length + 1, device=last_B.device)
        mask_B1TS = (slots_S <= positions_BT)[:, None, None]
        hidden_BTD = self._model.forward_hidden(
            last_B[:, None], positions_BT=positions_BT, mask_B1TS=mask_B1TS, cache=self._cache
        )
        self._accept(hidden_BTD[:, -1], self.rows)
        self._drop_finished()

    def remove(self, rows: Sequence[DecodingRow]) -> None:
        for row in rows:
            row.finished = True
        self._drop_finished()

    def _accept(self, hidden_BD: Tensor, rows: Sequence[DecodingRow]) -> None:
        """Sample from the logits of one position: those of whole prompts may need more memory than training."""
        logits_BV = self._model.logits(hidden_BD)[:, : self._model.config.n_tokens]  # the other rows are padding
        samplings, numbers = zip(*((row.sampling, len(row.completion.tokens)) for row in rows), strict=True)
        for row, token in zip(rows, sample_tokens(logits_BV, samplings, numbers), strict=True):
            row.accept(token, self._ends, self._model.config.max_seq_len)

    def _drop_finished(self) -> None:
        kept = [index for index, row in enumerate(self.rows) if not row.finished]
        if len(kept) == len(self.rows):
            return
        if kept:
            self._cache.select_rows(torch.tensor(kept, device=self._cache.lengths_B.device))
        else:
            del self._cache
        self.rows = [self.rows[index] for index in kept]


class InterleavedBatch(DecodingBatch):
    """Each row on its own, one token each a step. For models whose cache takes rows of one length only."""

    def __init__(self, model: LanguageModel, eos_token_ids: frozenset[int]) -> None:
        super().__init__(model, eos_token_ids)
        self._tokens: dict[DecodingRow, Iterator[int]] = {}

    def add(self, rows: Sequence[DecodingRow]) -> None:
        for row in rows:
            self._tokens[row] = generate_tokens(self._model, row.prompt, row.limit + 1, row.sampling, frozenset())
        self.rows = [*self.rows, *rows]
        try:
            self._advance(rows)
        except BaseException:
            self.remove(rows)
            raise

    def step(self) -> None:
        self._advance(self.rows)

    def remove(self, rows: Sequence[DecodingRow]) -> None:
        self.rows = [row for row in self.rows if row not in rows]
        for row in rows:
            del self._tokens[row]

    def _advance(self, rows: Sequence[DecodingRow]) -> None:
        for row in rows:
            row.accept(next(self._tokens[row]), self._ends, self._model.config.max_seq_len)
        self.remove([row for row in rows if row.finished])
