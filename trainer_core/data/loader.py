"""Micro-batches from the token cache. Shapes: B sequences, T positions."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch, ReferenceLogps, add_segments, find_documents
from trainer_core.data.order import SHUFFLE_BLOCK_SIZE, EpochOrder
from trainer_core.data.sequences import WIDTH_MULTIPLE
from trainer_core.data.token_files import divide_spans, token_dtype
from trainer_core.system.hardware import usable_threads
from trainer_core.system.memory import system_memory

if TYPE_CHECKING:  # spawned loader processes need not import what prepares data
    from trainer_core.data.prepare import PreparedData

_LOW_MEMORY_BYTES: Final = 15e9
_MAX_WORKERS: Final = 16
_MAX_CACHED_FRACTION: Final = 0.5  # of the memory: a smaller token cache stays in memory once read

Ids = npt.NDArray[np.int64]
SplitName = Literal["train", "validation"]


class SequenceItem(NamedTuple):
    """One sequence: two arrays (T,), the positions at which its documents begin, and its index in the split."""

    input_ids: Ids
    labels: Ids
    document_starts: Sequence[int] = (0,)
    sequence_index: int = -1
    samples: int = 1
    preference: Sequence[int] = ()  # of each document, see `Batch`
    mismatched: SequenceItem | None = None  # see `Batch`


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
        cu_seqlens, indices = find_documents(documents, width)
        batch = replace(batch, row_documents=documents, cu_seqlens=cu_seqlens, indices=indices)
        batch = add_segments(batch) if divided else batch
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
