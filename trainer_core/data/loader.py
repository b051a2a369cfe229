"""Micro-batches from the token cache. The only module of `data` that needs torch.

Shapes: B sequences, T positions. Labels are shifted: `labels[b, t]` is the token after `input_ids[b, t]`, or
`IGNORE_INDEX`; the loss is `cross_entropy(logits.flatten(0, 1), labels.flatten())`.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trainer_core.config import Config
from trainer_core.data.order import SHUFFLE_BLOCK_SIZE, EpochOrder
from trainer_core.data.sequences import WIDTH_MULTIPLE
from trainer_core.data.token_files import divide_spans, token_dtype
from trainer_core.models.attention import CuSeqlens
from trainer_core.system.hardware import usable_threads
from trainer_core.system.memory import system_memory

if TYPE_CHECKING:  # spawned loader processes need not import what prepares data
    from trainer_core.data.prepare import PreparedData

IGNORE_INDEX: Final = -100
PADDING_SEGMENT: Final = -1  # in `Batch.segments`
_LOW_MEMORY_BYTES: Final = 15e9
_MAX_WORKERS: Final = 16
_MAX_CACHED_FRACTION: Final = 0.5  # of the memory: a smaller token cache stays in memory once read

Ids = npt.NDArray[np.int64]
SplitName = Literal["train", "validation"]
ReferenceLogps = npt.NDArray[np.float32]
"""Log-probabilities under the reference model: a row per sequence, of its documents, then of those of `mismatched`."""


class SequenceItem(NamedTuple):
    """One sequence: two arrays (T,), the positions at which its documents begin, and its index in the split."""

    input_ids: Ids
    labels: Ids
    document_starts: Sequence[int] = (0,)
    sequence_index: int = -1
    samples: int = 1
    preference: Sequence[int] = ()  # of each document, see `Batch`
    mismatched: SequenceItem | None = None  # see `Batch`


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
            cu_seqlens, indices = _find_documents(self._row_documents(), width)
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
            others = replace(others, reference=rows[:, count:])
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


class SequenceDataset(Dataset[SequenceItem]):
    """The sequences of one split, each of at most `max_seq_len` positions.

    Plain text: adjacent windows of the whole text. Unless tokens attend across documents, a window is divided at
    document starts, and the first token of each document is not predicted. Conversations: one or, packed, several per
    sequence, truncated on the right, with labels only in the trained spans. Picklable; each process maps the token
    files at its first item.
    """

    def __init__(self, prepared: PreparedData, split: SplitName) -> None:
        self._split = prepared.open_split(split)
        self._max_seq_len, self._sequence_len = prepared.max_seq_len, prepared.sequence_len
        self._num_sides, self._is_kto = prepared.sides, prepared.objective == "kto"
        self._pad_token_id = prepared.end_of_text
        self._separate_documents = not prepared.attend_across_documents
        self._sequences = prepared.sequences.get(split)
        self._count = (prepared.train if split == "train" else prepared.validation).samples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> SequenceItem:
        if self._sequences is None:
            return self._text_item(index)._replace(sequence_index=index)
        documents = self._sequences.documents(index)
        parts = [part for document in documents for part in self._conversation_items(document)]
        starts = [0, *itertools.accumulate(len(part.input_ids) for part in parts)][:-1]
        inputs, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("input_ids", "labels"))
        preference = [side for part in parts for side in part.preference]
        item = SequenceItem(inputs, labels, starts, index, len(documents), preference)
        return item._replace(mismatched=self._mismatched_item(item)) if self._is_kto else item

    def _mismatched_item(self, item: SequenceItem) -> SequenceItem:
        """The first prompt of a sequence with the first answer of the sequence before."""
        assert self._sequences is not None
        document, *_ = self._sequences.documents((item.sequence_index - 1) % self._count)
        other, *_ = self._conversation_items(document)
        prompt = item.input_ids[: np.flatnonzero(item.labels != IGNORE_INDEX)[0] + 1]
        answer = other.labels[other.labels != IGNORE_INDEX][: self._max_seq_len + 1 - len(prompt)]
        labels = np.concatenate([np.full(len(prompt) - 1, IGNORE_INDEX, dtype=np.int64), answer])
        return SequenceItem(np.concatenate([prompt, answer[:-1]]), labels, (0,), item.sequence_index, preference=(0,))

    def _text_item(self, index: int) -> SequenceItem:
        start = index * self._max_seq_len
        tokens = self._split.read(start, min(start + self._max_seq_len + 1, self._split.tokens))
        inputs, labels = tokens[:-1], tokens[1:]
        if not self._separate_documents:
            return SequenceItem(inputs, labels)
        offsets = self._split.offsets
        first, last = np.searchsorted(offsets, (start, start + len(labels)), side="right").tolist()
        begins = offsets[first:last] - start  # of documents that begin after the first token: 1 to len(labels)
        labels = labels.copy()
        labels[begins - 1] = IGNORE_INDEX
        return SequenceItem(inputs, labels, [0, *begins[begins < len(inputs)].tolist()])

    def _conversation_items(self, document: int) -> Iterator[SequenceItem]:
        """A conversation, or those of a preference."""
        start, end = self._split.offsets[document : document + 2].tolist()
        first, last = self._split.span_offsets[document : document + 2].tolist()
        spans = self._split.spans[first:last].tolist()
        if not self._num_sides:
            yield self._conversation_item(start, end, spans)
            return
        for side, begin, stop, trained in divide_spans(spans, end - start):
            yield self._conversation_item(start + begin, start + stop, trained, (side,))

    def _conversation_item(
        self, start: int, end: int, spans: Sequence[Sequence[int]], preference: Sequence[int] = ()
    ) -> SequenceItem:
        tokens = self._split.read(start, min(end, start + self._max_seq_len + 1))
        labels = np.full(len(tokens) - 1, IGNORE_INDEX, dtype=np.int64)
        for begin, stop in spans:
            begin = max(begin, 1)  # nothing predicts the very first token
            labels[begin - 1 : max(stop - 1, 0)] = tokens[begin:stop]
        return SequenceItem(tokens[:-1], labels, preference=preference)

    def collate(self, items: Sequence[SequenceItem]) -> Batch:
        """Stack items, padded on the right to `max_seq_len` (text), or to their longest, a multiple of 8."""
        width = self._sequence_len
        if self._sequences is not None:
            longest = max(len(item.input_ids) for item in items)
            width = min(-(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, width)
        input_ids = np.full((len(items), width), self._pad_token_id, dtype=np.int64)
        labels = np.full((len(items), width), IGNORE_INDEX, dtype=np.int64)
        for row, item in enumerate(items):
            input_ids[row, : len(item.input_ids)] = item.input_ids
            labels[row, : len(item.labels)] = item.labels
        counts = np.count_nonzero(labels != IGNORE_INDEX, axis=1).tolist()
        batch = Batch(
            torch.from_numpy(input_ids),
            torch.from_numpy(labels),
            loss_tokens=sum(counts),
            row_loss_tokens=tuple(counts),
            samples=sum(item.samples for item in items),
            sample_ids=tuple(item.sequence_index for item in items),
        )
        divided = any(len(item.document_starts) > 1 for item in items)
        if not divided and self._sequences is None:
            return batch
        starts = [(*item.document_starts, len(item.input_ids)) for item in items]
        documents = tuple(tuple(np.diff(row).tolist()) for row in starts)
        cu_seqlens, indices = _find_documents(documents, width)
        batch = replace(batch, row_documents=documents, cu_seqlens=cu_seqlens, indices=indices)
        batch = _add_segments(batch) if divided else batch
        return self._add_preference(batch, items) if self._num_sides else batch

    def _add_preference(self, batch: Batch, items: Sequence[SequenceItem]) -> Batch:
        columns = itertools.zip_longest(*(item.preference for item in items), fillvalue=0)
        row_pairs = tuple(len(item.preference) if self._is_kto else item.samples for item in items)
        preference = torch.tensor([*columns], dtype=torch.int8).T.contiguous()
        others = [item.mismatched for item in items if item.mismatched is not None]
        mismatched = self.collate(others) if others else None
        return replace(batch, preference=preference, pairs=sum(row_pairs), row_pairs=row_pairs, mismatched=mismatched)

    @property
    def most_conversations(self) -> int:
        """Most columns of `ReferenceLogps`."""
        assert self._sequences is not None
        documents = int(np.diff(self._sequences.offsets).max(initial=0))
        return documents * self._num_sides + self._is_kto

    def close(self) -> None:
        """Close the files, so that Windows can delete them."""
        self._split.close()


def _find_documents(row_documents: Sequence[Sequence[int]], width: int) -> tuple[CuSeqlens, Tensor | None]:
    """`Batch.cu_seqlens` and `Batch.indices`."""
    lengths = [length for row in row_documents for length in row]
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    row_lengths = list(map(sum, row_documents))
    indices = None
    if min(row_lengths) < width:
        indices = torch.cat([torch.arange(length) + row * width for row, length in enumerate(row_lengths)])
    return CuSeqlens(offsets, max(lengths)), indices


def _add_segments(batch: Batch) -> Batch:
    """Add `segments` and `positions` of `row_documents`."""
    segments = torch.full_like(batch.input_ids, PADDING_SEGMENT, dtype=torch.int32)
    positions = torch.zeros_like(batch.input_ids)
    for row, lengths in enumerate(batch.row_documents):
        end = sum(lengths)
        segments[row, :end] = torch.repeat_interleave(torch.tensor(lengths))
        positions[row, :end] = torch.cat([torch.arange(length) for length in lengths])
    return replace(batch, segments=segments, positions=positions)


class LoaderSettings(NamedTuple):
    """How batches are loaded, and why.

    Reasons: `set`: as configured. `low_memory`: `low_memory`, or less than 15 GB of RAM. `cpu`: training computes on
    all cores, and a memory-mapped cache needs no help. `gpu`: the GPU computes while the trainer builds the next
    batches; to receive one from a process takes longer (0.7 ms against 0.2 for 12 windows of 1024). `disk`: the data
    does not fit in memory, so several processes wait for the disk. `encoding`: without a token cache, processes encode
    rows while the GPU computes.
    """

    num_workers: int  # processes
    pin_memory: bool
    reason: Literal["set", "low_memory", "cpu", "gpu", "disk", "encoding"]


def choose_loader_settings(
    config: Config, device_type: str, data_bytes: int, cores: int, memory: int, platform: str = sys.platform
) -> LoaderSettings:
    """Choose processes and pinning for a machine of `cores` logical processors and `memory` bytes."""
    pin = config.pin_memory and not config.low_memory and device_type == "cuda" and memory >= _LOW_MEMORY_BYTES
    if config.low_memory:
        return LoaderSettings(0, pin, "low_memory")
    if config.num_workers >= 0:
        return LoaderSettings(min(config.num_workers, cores, _MAX_WORKERS), pin, "set")
    if memory < _LOW_MEMORY_BYTES:
        return LoaderSettings(0, pin, "low_memory")
    if device_type == "cpu":
        return LoaderSettings(0, pin, "cpu")
    if config.token_cache and data_bytes <= memory * _MAX_CACHED_FRACTION:
        return LoaderSettings(0, pin, "gpu")
    # Each spawned process takes seconds and hundreds of megabytes.
    workers = min(cores // 2, 1 if platform in ("win32", "darwin") else 4)
    return LoaderSettings(workers, pin, "disk" if config.token_cache else "encoding")


class _BatchSampler:
    """Sample indices of each micro-batch, from `start` in `epoch` on. DataLoader keeps one for all epochs."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._order.batches(self.epoch, self.start):
            yield indices.tolist()


class BatchLoader:
    """Micro-batches of one split. Their samples depend only on epoch and position, not on how they are loaded.

    Positions count samples in the order of an epoch. A new epoch ends the previous one.
    """

    def __init__(
        self, prepared: PreparedData, config: Config, split: SplitName = "train", device_type: str = "cpu"
    ) -> None:
        self._dataset = dataset = SequenceDataset(prepared, split)
        self.batch_size = config.batch_size
        self.reference: ReferenceLogps | None = None  # added to batches
        data_bytes = prepared.train.tokens * np.dtype(token_dtype(prepared.vocab_size)).itemsize
        machine = usable_threads(), system_memory().total
        self.settings = settings = choose_loader_settings(config, device_type, data_bytes, *machine)
        order = EpochOrder(self.samples, config.batch_size, config.seed, _shuffle_block_size(prepared))
        self._sampler = _BatchSampler(order)
        uses_workers = settings.num_workers > 0
        self._loader: DataLoader[SequenceItem] | None = DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=settings.num_workers,
            collate_fn=dataset.collate,
            pin_memory=settings.pin_memory,
            prefetch_factor=config.prefetch_factor if uses_workers else None,
            persistent_workers=config.persistent_workers and uses_workers,
            worker_init_fn=_ignore_interrupts,
            # By default, DataLoader draws a seed from the global generator, and resume would not be exact.
            generator=torch.Generator().manual_seed(0),
        )
        self._iterator: Iterator[Batch] = iter(())

    @property
    def samples(self) -> int:
        """Sequences of the split."""
        return len(self._dataset)

    @property
    def most_conversations(self) -> int:
        return self._dataset.most_conversations

    def open_files(self) -> None:
        """Map the files now: later, memory may not suffice."""
        if self.samples:
            self._dataset[0]

    def iterate_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches from position `start` to the end of an epoch (both from 0). Does not use the global RNG."""
        self._sampler.epoch, self._sampler.start = epoch, start
        assert self._loader is not None, "closed"
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            yield self._with_reference(replace(batch, epoch=epoch))

    def step_batches(self, position: int, size: int) -> Iterator[list[Batch]]:
        """Yield `size` micro-batches at a time, fewer at the end of an epoch, forever.

        `position`: samples that the run has used, over all epochs.
        """
        first, start = divmod(position, self.samples)
        for epoch in itertools.count(first):
            batches = self.iterate_epoch(epoch, start)
            while window := list(itertools.islice(batches, size)):
                yield window
            start = 0

    def iterate_samples(self, indices: Ids, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Sequences `indices` in micro-batches: every `world_size`-th from number `rank` on. Starts no process."""
        size = self.batch_size
        for start in range(rank * size, len(indices), world_size * size):
            batch = self._dataset.collate([self._dataset[index] for index in indices[start : start + size].tolist()])
            batch = self._with_reference(batch)
            yield batch.pin_memory() if self.settings.pin_memory else batch

    def _with_reference(self, batch: Batch) -> Batch:
        return batch if self.reference is None else batch.with_reference(self.reference)

    def close(self) -> None:
        """End the loader processes, and close the files."""
        # A private method of torch; without it, processes end when the iterator is deleted.
        getattr(self._iterator, "_shutdown_workers", lambda: None)()
        self._iterator, self._loader = iter(()), None
        self._dataset.close()


def _shuffle_block_size(prepared: PreparedData) -> int:
    """Samples that stay together when shuffled, so that rows are read in runs; 0: none."""
    if prepared.token_cache:
        return 0
    if prepared.packed:
        return max(1, SHUFFLE_BLOCK_SIZE * prepared.train.samples // prepared.train.documents)
    return SHUFFLE_BLOCK_SIZE


def _ignore_interrupts(worker: int) -> None:
    """Ctrl+C reaches every process of a terminal; only the trainer handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
