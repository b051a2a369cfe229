"""Micro-batches from the token cache. The only module of `data` that needs torch.

Shapes: B sequences, T positions. Labels are shifted: `labels[b, t]` is the token after `input_ids[b, t]`, or
`IGNORE_INDEX`; the loss is `cross_entropy(logits.flatten(0, 1), labels.flatten())`.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer_core.config import Config
from trainer_core.data.order import EpochOrder
from trainer_core.data.prefetch import PrefetchIterator, choose_loader_settings
from trainer_core.data.sequences import WIDTH_MULTIPLE, SequenceIndex, sequences_folder
from trainer_core.data.token_files import token_dtype
from trainer_core.models.attention import CuSeqlens, cu_seqlens_from_segments

if TYPE_CHECKING:  # spawned loader processes need not import what prepares data
    from trainer_core.data.prepare import PreparedData

IGNORE_INDEX: Final = -100
PADDING_SEGMENT: Final = -1  # in `Batch.segments`

Ids = npt.NDArray[np.int64]
SplitName = Literal["train", "validation"]


class SequenceItem(NamedTuple):
    """One sequence: two arrays (T,), the positions at which its documents begin, and its index in the split."""

    input_ids: Ids
    labels: Ids
    document_starts: Sequence[int] = (0,)
    sequence_index: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    With `segments`, tokens attend only within their segment, and `positions` restart at 0 in each. Without, attention
    is causal over the whole sequence: one document, padded on the right.
    """

    input_ids: Tensor  # (B, T) int64
    labels: Tensor  # (B, T) int64, or IGNORE_INDEX
    loss_tokens: int  # labels that count
    samples: int  # sequences of text, or conversations
    segments: Tensor | None = None  # (B, T) int32: document number in its sequence, or PADDING_SEGMENT
    positions: Tensor | None = None  # (B, T) int64
    cu_seqlens: CuSeqlens | None = None  # the same documents for attention that takes cumulative lengths
    sample_ids: tuple[int, ...] = ()  # indices of the sequences in the split
    epoch: int = 0  # from 0
    row_loss_tokens: tuple[int, ...] = ()  # `loss_tokens` of each sequence; empty: unknown
    row_attention_pairs: tuple[int, ...] = ()  # sum of squared document lengths of each sequence; empty: undivided

    @property
    def attention_pairs(self) -> int:
        """Pairs of positions that attend to each other, before causality halves them. Does not synchronize."""
        return sum(self._attention_pairs_by_row())

    def _attention_pairs_by_row(self) -> tuple[int, ...]:
        rows, width = self.input_ids.shape
        return self.row_attention_pairs or (width**2,) * rows

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory. Also called by DataLoader."""
        return self._map_tensors(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """Copy to `device`; asynchronous from page-locked memory."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        names = ("input_ids", "labels", "segments", "positions")
        changed: dict[str, Any] = {name: function(one) for name in names if (one := getattr(self, name)) is not None}
        if self.cu_seqlens is not None:
            changed["cu_seqlens"] = CuSeqlens(function(self.cu_seqlens.offsets), self.cu_seqlens.max_seqlen)
        return replace(self, **changed)

    def tensors(self) -> list[Tensor]:
        offsets = None if self.cu_seqlens is None else self.cu_seqlens.offsets
        return [one for one in (self.input_ids, self.labels, self.segments, self.positions, offsets) if one is not None]

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
            row_attention_pairs=self.row_attention_pairs[rows],
            segments=None if self.segments is None else self.segments[rows],
            positions=None if self.positions is None else self.positions[rows],
            cu_seqlens=None,
        )


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
        row_attention_pairs=tuple(pairs for part in parts for pairs in part._attention_pairs_by_row()),
        cu_seqlens=None,
    )
    if any(part.segments is not None for part in parts):
        segments, positions = zip(*map(_segments_and_positions, parts), strict=True)
        whole = replace(whole, segments=torch.cat(segments), positions=torch.cat(positions))
    return whole.pin_memory() if first.input_ids.is_pinned() else whole


def _segments_and_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """`segments` and `positions`; of undivided sequences, those of one document."""
    if batch.segments is not None and batch.positions is not None:
        return batch.segments, batch.positions
    columns = torch.arange(batch.input_ids.shape[1]).expand(batch.input_ids.shape)
    return torch.zeros_like(batch.input_ids, dtype=torch.int32), columns


class SequenceDataset(Dataset[SequenceItem]):
    """The sequences of one split, each of at most `max_seq_len` positions.

    Plain text: adjacent windows of the whole text. Unless tokens attend across documents, a window is divided at
    document starts, and the first token of each document is not predicted. Conversations: one or, packed, several per
    sequence, truncated on the right, with labels only in the trained spans. Picklable; each process maps the files at
    its first item.
    """

    def __init__(self, prepared: PreparedData, split: SplitName) -> None:
        self._split = prepared.open_split(split)
        self._max_seq_len = prepared.max_seq_len
        self._pad_token_id = prepared.end_of_text
        self._separate_documents = not prepared.attend_across_documents
        counts = prepared.train if split == "train" else prepared.validation
        self._sequences: SequenceIndex | None = None
        if prepared.task == "sft":
            folder = sequences_folder(prepared.folder, prepared.max_seq_len, prepared.packed)
            self._sequences = SequenceIndex(folder / split)
        self._count = counts.samples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> SequenceItem:
        if self._sequences is None:
            return self._text_item(index)._replace(sequence_index=index)
        parts = [self._conversation_item(document) for document in self._sequences.documents(index)]
        starts = [0, *itertools.accumulate(len(part.input_ids) for part in parts)][:-1]
        inputs, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("input_ids", "labels"))
        return SequenceItem(inputs, labels, starts, index)

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

    def _conversation_item(self, document: int) -> SequenceItem:
        split = self._split
        start, end = split.offsets[document : document + 2].tolist()
        tokens = split.read(start, min(end, start + self._max_seq_len + 1))
        labels = np.full(len(tokens) - 1, IGNORE_INDEX, dtype=np.int64)
        first, last = split.span_offsets[document : document + 2].tolist()
        for begin, stop in split.spans[first:last].tolist():
            begin = max(begin, 1)  # nothing predicts the very first token
            labels[begin - 1 : max(stop - 1, 0)] = tokens[begin:stop]
        return SequenceItem(tokens[:-1], labels)

    def collate(self, items: Sequence[SequenceItem]) -> Batch:
        """Stack items, padded on the right to `max_seq_len` (text), or to their longest, a multiple of 8."""
        width = self._max_seq_len
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
            samples=len(items) if self._sequences is None else sum(len(item.document_starts) for item in items),
            sample_ids=tuple(item.sequence_index for item in items),
        )
        return _add_segments(batch, items) if any(len(item.document_starts) > 1 for item in items) else batch

    def close(self) -> None:
        """Close the files, so that Windows can delete them."""
        self._split.close()
        if self._sequences is not None:
            self._sequences.close()


def _add_segments(batch: Batch, items: Sequence[SequenceItem]) -> Batch:
    """Add the documents of the sequences. The padding of a row counts as a document in attention."""
    rows, width = batch.input_ids.shape
    segments = np.full((rows, width), PADDING_SEGMENT, dtype=np.int32)
    positions = np.zeros((rows, width), dtype=np.int64)
    pairs: list[int] = []
    for row, item in enumerate(items):
        length, starts = len(item.input_ids), np.asarray(item.document_starts)
        lengths = np.diff(starts, append=length)
        number = np.repeat(np.arange(len(starts)), lengths)
        segments[row, :length] = number
        positions[row, :length] = np.arange(length) - starts[number]
        pairs.append(int(lengths @ lengths) + (width - length) ** 2)
    segments_BT = torch.from_numpy(segments)
    return replace(
        batch,
        segments=segments_BT,
        positions=torch.from_numpy(positions),
        cu_seqlens=cu_seqlens_from_segments(segments_BT),
        row_attention_pairs=tuple(pairs),
    )


class _BatchSampler:
    """Sample indices of each micro-batch, from `start` in `epoch` on.

    If `endless`, later epochs follow, so that their first batches are loaded before an epoch ends.
    """

    def __init__(self, order: EpochOrder, endless: bool) -> None:
        self._order, self._endless = order, endless and order.samples > 0
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        start = self.start
        for epoch in itertools.count(self.epoch):
            for indices in self._order.batches(epoch, start):
                yield indices.tolist()
            if not self._endless:
                return
            start = 0


class BatchLoader:
    """Micro-batches of one split. Their samples depend only on epoch and position, not on how they are loaded.

    Positions count samples in the order of an epoch. A new iteration ends the previous one. Raises what a loader
    process raised.
    """

    def __init__(
        self, prepared: PreparedData, config: Config, split: SplitName = "train", device_type: str = "cpu"
    ) -> None:
        self._dataset = SequenceDataset(prepared, split)
        self._config = config
        order = EpochOrder(self.samples, config.batch_size, config.seed, _shuffle_block_size(prepared))
        self._batch_sampler = _BatchSampler(order, config.persistent_workers)
        self._loader: DataLoader[SequenceItem] | None = None
        self._iterator: Iterator[Batch] | None = None
        self._next_position: tuple[int, int] | None = None  # epoch and position of the next batch of `_iterator`
        token_bytes = np.dtype(token_dtype(prepared.vocab_size)).itemsize
        self.settings = choose_loader_settings(config, device_type, prepared.train.tokens * token_bytes)

    @property
    def samples(self) -> int:
        """Sequences of the split."""
        return len(self._dataset)

    def iterate_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches from position `start` to the end of an epoch (both from 0). Does not use the global RNG."""
        if self._next_position != (epoch, start):
            self._close_iterator()
            self._batch_sampler.epoch, self._batch_sampler.start = epoch, start
            in_workers = self.settings.num_workers > 0
            self._iterator = self._load_in_workers() if in_workers else self._prefetch(self._batch_sampler)
        iterator, self._next_position = self._iterator, None
        assert iterator is not None
        position = start
        while position < self.samples:
            loaded = next(iterator)
            position += loaded.input_ids.shape[0]
            if position == self.samples and self._config.persistent_workers:
                self._next_position = epoch + 1, 0
            yield replace(loaded, epoch=epoch)

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
        self._close_iterator()
        size = self._config.batch_size
        starts = range(rank * size, len(indices), world_size * size)
        self._iterator = self._prefetch(indices[start : start + size].tolist() for start in starts)
        return self._iterator

    def _prefetch(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        """Load batches of these sequences in this process."""
        depth = self.settings.prefetch_batches
        if not depth:
            return self._load_in_process(batches)
        if not self.settings.pin_memory:
            return PrefetchIterator(self._load_in_process(batches), depth)
        # A new thread uses the first GPU; pinning there would allocate memory on it for every rank.
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device())
        return PrefetchIterator(self._load_in_process(batches), depth, set_device)

    def _load_in_process(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        for indices in batches:
            batch = self._dataset.collate([self._dataset[index] for index in indices])
            yield batch.pin_memory() if self.settings.pin_memory else batch

    def _load_in_workers(self) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = DataLoader(
                self._dataset,
                batch_sampler=self._batch_sampler,
                num_workers=self.settings.num_workers,
                collate_fn=self._dataset.collate,
                pin_memory=self.settings.pin_memory,
                prefetch_factor=self._config.prefetch_factor,
                persistent_workers=self._config.persistent_workers,
                worker_init_fn=_ignore_interrupts,
                # By default, DataLoader draws a seed from the global generator, and resume would not be exact.
                generator=torch.Generator().manual_seed(0),
            )
        return iter(self._loader)

    def _close_iterator(self, end_workers: bool = False) -> None:
        """End the thread, and loader processes unless they are persistent."""
        iterator, self._iterator, self._next_position = self._iterator, None, None
        if isinstance(iterator, PrefetchIterator):
            iterator.close()
        elif self._loader is not None and (end_workers or not self._config.persistent_workers):
            # A private method of torch; without it, processes end when the iterator is deleted.
            getattr(iterator, "_shutdown_workers", lambda: None)()

    def close(self) -> None:
        """End the thread or the loader processes, and close the files."""
        self._close_iterator(end_workers=True)
        self._loader = None
        self._dataset.close()


def _shuffle_block_size(prepared: PreparedData) -> int:
    """Samples that stay together when shuffled, so that rows are read in runs; 0: none."""
    if prepared.token_cache:
        return 0
    from trainer_core.data.uncached import SHUFFLE_BLOCK_SIZE  # here: it imports all readers

    if prepared.packed:
        return max(1, SHUFFLE_BLOCK_SIZE * prepared.train.samples // prepared.train.documents)
    return SHUFFLE_BLOCK_SIZE


def _ignore_interrupts(worker: int) -> None:
    """Ctrl+C reaches every process of a terminal; only the trainer handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
