"""One micro-batch of sequences, with what documents they consist of and what is known of them.

Shapes: B sequences, T positions. Labels are shifted: `labels[b, t]` is the token after `input_ids[b, t]`, or
`IGNORE_INDEX`; the loss is `cross_entropy(logits.flatten(0, 1), labels.flatten())`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from trainer_core.models.attention import CuSeqlens

IGNORE_INDEX: Final = -100
PADDING_SEGMENT: Final = -1  # in `Batch.segments`
ReferenceLogps = npt.NDArray[np.float32]
"""Log-probabilities under the reference model: a row per sequence, of its documents, and in the last column of
`mismatched`, which has one per sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    With `segments`, tokens attend only within their segment, and `positions` restart at 0 in each. Without, attention
    is causal over the whole sequence: one document, padded on the right.

    `cu_seqlens` are the same documents in all positions but padding, which `indices` selects from the B * T positions.

    With `preference`, the documents are the conversations of pairs, chosen and rejected in turn, or labelled ones.
    """

    input_ids: Tensor  # (B, T) int64
    labels: Tensor  # (B, T) int64, or IGNORE_INDEX
    loss_tokens: int  # labels that count
    samples: int  # sequences of text, or conversations, or rows of preferences
    segments: Tensor | None = None  # (B, T) int32: document number in its sequence, or PADDING_SEGMENT
    positions: Tensor | None = None  # (B, T) int64
    cu_seqlens: CuSeqlens | None = None
    indices: Tensor | None = None  # (N,) int64; None: all
    sample_ids: tuple[int, ...] = ()  # indices of the sequences in the split
    epoch: int = 0  # from 0
    row_loss_tokens: tuple[int, ...] = ()  # `loss_tokens` of each sequence; empty: unknown
    row_documents: tuple[tuple[int, ...], ...] = ()  # lengths of each sequence's documents; empty: undivided and full
    preference: Tensor | None = None  # (B, S) int8: 1 chosen, -1 rejected, by number of the document; 0: none
    reference: Tensor | None = None  # (B, S) float32: log-probabilities of the reference model, if known
    pairs: int = 0  # with `preference`: pairs, or for `kto` conversations
    row_pairs: tuple[int, ...] = ()  # `pairs` of each sequence
    mismatched: Batch | None = None  # kto: each prompt with the answer to another one
    advantages: Tensor | None = None  # (B,) float32: of answers that were rewarded, see `train/grpo.py`
    old_logps: Tensor | None = None  # (B, T) float32: log-probabilities of the labels when they were generated
    weight: int | None = None  # of rewarded answers: `loss_weight`

    @property
    def loss_weight(self) -> int:
        """Number of terms that the loss is the mean of: pairs if there are any, else tokens."""
        return self.pairs or self.loss_tokens if self.weight is None else self.weight

    @property
    def tokens(self) -> int:
        """Positions that are not padding. Does not synchronize."""
        return sum(map(sum, self._row_documents()))

    @property
    def attention_pairs(self) -> int:
        """Pairs of positions that attend to each other, before causality halves them. Does not synchronize."""
        return sum(length**2 for row in self._row_documents() for length in row)

    def _row_documents(self) -> tuple[tuple[int, ...], ...]:
        rows, width = self.input_ids.shape
        return self.row_documents or ((width,),) * rows

    def without_padding(self) -> Batch:
        """All positions but padding in one row, with `cu_seqlens`. Synchronizes with a GPU after `select_rows`."""
        width, device = self.input_ids.shape[1], self.input_ids.device
        cu_seqlens, indices = self.cu_seqlens, self.indices
        if cu_seqlens is None:
            cu_seqlens, indices = find_documents(self._row_documents(), width)
            cu_seqlens = CuSeqlens(cu_seqlens.offsets.to(device), cu_seqlens.max_seqlen)
            indices = None if indices is None else indices.to(device)
        positions = self.positions
        if positions is None:
            positions = torch.arange(width, device=device).expand_as(self.input_ids)
        ids, labels, positions = (
            (one.flatten() if indices is None else one.flatten()[indices]).unsqueeze(0)
            for one in (self.input_ids, self.labels, positions)
        )
        return replace(
            self,
            input_ids=ids,
            labels=labels,
            positions=positions,
            segments=None,
            cu_seqlens=cu_seqlens,
            indices=None,
            row_loss_tokens=(self.loss_tokens,),
            row_documents=(tuple(itertools.chain.from_iterable(self._row_documents())),),
            preference=self._in_one_row(self.preference),
            reference=self._in_one_row(self.reference),
            row_pairs=(self.pairs,),
        )

    def _in_one_row(self, values: Tensor | None) -> Tensor | None:
        """The values of documents in one row, without padding."""
        if values is None:
            return None
        counts = map(len, self._row_documents())
        return torch.cat([row[:count] for row, count in zip(values, counts, strict=True)]).unsqueeze(0)

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory. Also called by DataLoader."""
        return self._map_tensors(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """Copy to `device`; asynchronous from page-locked memory."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        names: tuple[str, ...] = ("input_ids", "labels", "segments", "positions", "indices")
        names += ("preference", "reference", "advantages", "old_logps")
        changed: dict[str, Any] = {name: function(one) for name in names if (one := getattr(self, name)) is not None}
        if self.cu_seqlens is not None:
            changed["cu_seqlens"] = CuSeqlens(function(self.cu_seqlens.offsets), self.cu_seqlens.max_seqlen)
        if self.mismatched is not None:
            changed["mismatched"] = self.mismatched._map_tensors(function)
        return replace(self, **changed)

    def tensors(self) -> list[Tensor]:
        offsets = None if self.cu_seqlens is None else self.cu_seqlens.offsets
        documents = (self.preference, self.reference, offsets)
        found = (self.input_ids, self.labels, self.segments, self.positions, self.indices, *documents)
        others = [] if self.mismatched is None else self.mismatched.tensors()
        return [*(one for one in found if one is not None), *others]

    def split_rows(self, max_rows: int) -> list[Batch]:
        """Split into batches of at most `max_rows` sequences; `samples` and `sample_ids` are not divided."""
        count = self.input_ids.shape[0]
        if count <= max_rows:
            return [self]
        return [self.select_rows(slice(row, row + max_rows)) for row in range(0, count, max_rows)]

    def select_rows(self, rows: slice) -> Batch:
        """Some of the sequences, as in `split_rows`. Synchronizes with a GPU if `row_loss_tokens` are unknown."""
        counts = self.row_loss_tokens[rows]
        return replace(
            self,
            input_ids=self.input_ids[rows],
            labels=self.labels[rows],
            loss_tokens=sum(counts) if counts else int((self.labels[rows] != IGNORE_INDEX).sum()),
            row_loss_tokens=counts,
            row_documents=self.row_documents[rows],
            segments=None if self.segments is None else self.segments[rows],
            positions=None if self.positions is None else self.positions[rows],
            advantages=None if self.advantages is None else self.advantages[rows],
            old_logps=None if self.old_logps is None else self.old_logps[rows],
            cu_seqlens=None,
            indices=None,
            preference=None if self.preference is None else self.preference[rows],
            reference=None if self.reference is None else self.reference[rows],
            pairs=sum(self.row_pairs[rows]),
            row_pairs=self.row_pairs[rows],
            mismatched=None if self.mismatched is None else self.mismatched.select_rows(rows),
        )

    def with_reference(self, logps: ReferenceLogps) -> Batch:
        """The batch with `reference`. `sample_ids` must number its sequences."""
        assert self.preference is not None
        rows, count, others = torch.from_numpy(logps[list(self.sample_ids)]), self.preference.shape[1], self.mismatched
        if others is not None:
            others = replace(others, reference=rows[:, -1:])
        return replace(self, reference=rows[:, :count], mismatched=others)


def concat_batches(parts: list[Batch]) -> Batch:
    """Concatenate batches of one width, in page-locked memory if they are. `sample_ids` are of the first."""
    first, known = parts[0], all(part.row_loss_tokens for part in parts)
    whole = replace(
        first,
        input_ids=torch.cat([part.input_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        loss_tokens=sum(part.loss_tokens for part in parts),
        samples=sum(part.samples for part in parts),
        row_loss_tokens=tuple(count for part in parts for count in part.row_loss_tokens) if known else (),
        row_documents=tuple(row for part in parts for row in part._row_documents()),
        cu_seqlens=None,
        indices=None,
        preference=_concat_documents([part.preference for part in parts]),
        reference=_concat_documents([part.reference for part in parts]),
        pairs=sum(part.pairs for part in parts),
        row_pairs=tuple(pairs for part in parts for pairs in part.row_pairs),
        mismatched=concat_batches(others) if (others := [one.mismatched for one in parts if one.mismatched]) else None,
    )
    if any(part.segments is not None for part in parts):
        segments, positions = zip(*((part.segments, part.positions) for part in map(with_segments, parts)), strict=True)
        whole = replace(whole, segments=torch.cat(segments), positions=torch.cat(positions))
    return whole.pin_memory() if first.input_ids.is_pinned() else whole


def _concat_documents(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The values of documents (B, S) of several batches; None if one has none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    width = max(part.shape[1] for part in known)
    return torch.cat([functional.pad(part, (0, width - part.shape[1])) for part in known])


def with_segments(batch: Batch) -> Batch:
    """The batch with `segments` and `positions`: undivided sequences are one document."""
    if batch.segments is not None:
        return batch
    columns = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
    segments = torch.zeros_like(batch.input_ids, dtype=torch.int32)
    return replace(batch, segments=segments, positions=columns.repeat(batch.input_ids.shape[0], 1))


def find_documents(row_documents: Sequence[Sequence[int]], width: int) -> tuple[CuSeqlens, Tensor | None]:
    """`Batch.cu_seqlens` and `Batch.indices`."""
    lengths = [length for row in row_documents for length in row]
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    row_lengths = list(map(sum, row_documents))
    indices = None
    if min(row_lengths) < width:
        indices = torch.cat([torch.arange(length) + row * width for row, length in enumerate(row_lengths)])
    return CuSeqlens(offsets, max(lengths)), indices


def add_segments(batch: Batch) -> Batch:
    """Add `segments` and `positions` of `row_documents`."""
    segments = torch.full_like(batch.input_ids, PADDING_SEGMENT, dtype=torch.int32)
    positions = torch.zeros_like(batch.input_ids)
    for row, lengths in enumerate(batch.row_documents):
        end = sum(lengths)
        segments[row, :end] = torch.repeat_interleave(torch.tensor(lengths))
        positions[row, :end] = torch.cat([torch.arange(length) for length in lengths])
    return replace(batch, segments=segments, positions=positions)
