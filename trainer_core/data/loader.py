"""From the token cache to micro-batches: the one file here that needs torch.

Shapes: B sequences, T positions. Labels are shifted already: `labels[b, t]` is the token that follows
`input_ids[b, t]`, and -100 where it does not count, so that the loss is
`cross_entropy(logits.flatten(0, 1), labels.flatten())`.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer_core.config import Config
from trainer_core.data.order import EpochOrder
from trainer_core.data.prefetch import PrefetchIterator, choose_loader_settings
from trainer_core.data.sequences import WIDTH_MULTIPLE, SequenceIndex, count_text_sequences, sequences_folder
from trainer_core.data.token_files import token_dtype
from trainer_core.models.attention import CuSeqlens

if TYPE_CHECKING:  # loader processes that are started anew need not import all that prepares data
    from trainer_core.data.prepare import PreparedData

IGNORE_INDEX: Final = -100
PADDING_SEGMENT: Final = -1  # in `Batch.segments`

Ids = npt.NDArray[np.int64]
SplitName = Literal["train", "validation"]


class SequenceItem(NamedTuple):
    """One sequence: two arrays (T,), the places in it at which documents begin, 0 first, and its number."""

    input_ids: Ids
    labels: Ids
    document_starts: Sequence[int] = (0,)
    sequence_index: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    `segments` are there where sequences hold several documents that do not see each other; then tokens
    attend only within their segment, and `positions` count from 0 in each. Without them attention is
    causal over the whole sequence, which is right for one document with padding behind it.
    """

    input_ids: Tensor  # (B, T) int64
    labels: Tensor  # (B, T) int64, IGNORED where nothing is to be predicted
    loss_tokens: int  # labels that count
    samples: int  # sequences of text, or conversations
    segments: Tensor | None = None  # (B, T) int32: number of the document in its sequence; PADDING behind the last
    positions: Tensor | None = None  # (B, T) int64
    cu_seqlens: CuSeqlens | None = None  # the documents of `segments` in another form, for attention that takes them so
    sample_ids: tuple[int, ...] = ()  # numbers of its sequences in the split, from 0
    epoch: int = 0  # from 0
    row_loss_tokens: tuple[int, ...] = ()  # labels that count in each sequence; empty: to be counted
    row_attention_pairs: tuple[
        int, ...
    ] = ()  # lengths of each sequence's documents, squared and added up; empty: not divided

    @property
    def attention_pairs(self) -> int:
        """Pairs of positions that attention is about, before causality halves them. Asks no device."""
        return sum(self._attention_pairs_by_row())

    def _attention_pairs_by_row(self) -> tuple[int, ...]:
        rows, width = self.input_ids.shape
        return self.row_attention_pairs or (width**2,) * rows

    def pin_memory(self) -> Batch:
        """The same in page-locked memory. DataLoader calls this by its name."""
        return self._map_tensors(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same on `device`. From page-locked memory the copy runs beside what the device does."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            input_ids=change(self.input_ids),
            labels=change(self.labels),
            segments=None if self.segments is None else change(self.segments),
            positions=None if self.positions is None else change(self.positions),
            cu_seqlens=None
            if self.cu_seqlens is None
            else CuSeqlens(change(self.cu_seqlens.offsets), self.cu_seqlens.max_seqlen),
        )

    def split_rows(self, max_rows: int) -> list[Batch]:
        """Its sequences, at most so many in each part; `samples` and `ids` are not divided."""
        count = self.input_ids.shape[0]
        return (
            [self]
            if count <= max_rows
            else [self.select_rows(slice(row, row + max_rows)) for row in range(0, count, max_rows)]
        )

    def select_rows(self, rows: slice) -> Batch:
        """Some of its sequences; as `rows`. Waits for a GPU where `row_loss_tokens` are not known."""
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

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        offsets = None if self.cu_seqlens is None else self.cu_seqlens.offsets
        there = (self.input_ids, self.labels, self.segments, self.positions, offsets)
        return [tensor for tensor in there if tensor is not None]


def concat_batches(parts: list[Batch]) -> Batch:
    """Batches of one width as one; in page-locked memory where they are. `ids` are of the first."""
    first, known = parts[0], all(part.row_loss_tokens for part in parts)
    whole = replace(
        first,
        input_ids=torch.cat([part.input_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        loss_tokens=sum(part.loss_tokens for part in parts),
        samples=sum(part.samples for part in parts),
        row_loss_tokens=tuple(count for part in parts for count in part.row_loss_tokens) if known else (),
        row_attention_pairs=tuple(square for part in parts for square in part._attention_pairs_by_row()),
        cu_seqlens=None,
    )
    if any(part.segments is not None for part in parts):
        segments, positions = zip(*map(_segments_and_positions, parts), strict=True)
        whole = replace(whole, segments=torch.cat(segments), positions=torch.cat(positions))
    return whole.pin_memory() if first.input_ids.is_pinned() else whole


def _segments_and_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """`segments` and `positions`; of sequences that are not divided those of one document."""
    if batch.segments is not None and batch.positions is not None:
        return batch.segments, batch.positions
    columns = torch.arange(batch.input_ids.shape[1]).expand(batch.input_ids.shape)
    return torch.zeros_like(batch.input_ids, dtype=torch.int32), columns


class SequenceDataset(Dataset[SequenceItem]):
    """The sequences of one split, as items of at most `max_seq_len` positions.

    Plain text: windows of the whole text, one after the other. Unless tokens attend across documents, a
    window is divided where a document begins, and that document's first token is not predicted.
    Conversations: one a sequence, or several where packed, each cut at its end where it is too long, with
    labels for the spans that are trained on alone.
    Picklable; each process opens the memory maps at its first item.
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
            self._sequences = SequenceIndex(folder / split, prepared.packed)
        self._count = (
            counts.samples if self._sequences else count_text_sequences(counts.tokens, self._max_seq_len, split)
        )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> SequenceItem:
        if self._sequences is None:
            return self._text_item(index)._replace(sequence_index=index)
        parts = [self._conversation_item(document) for document in map(int, self._sequences.documents(index))]
        if len(parts) == 1:
            return parts[0]._replace(sequence_index=index)
        begins = [0, *itertools.accumulate(len(part.input_ids) for part in parts)]
        inputs, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("input_ids", "labels"))
        return SequenceItem(inputs, labels, begins[:-1], index)

    def __getitems__(self, indices: Sequence[int]) -> list[SequenceItem]:
        return [self[index] for index in indices]

    def _text_item(self, index: int) -> SequenceItem:
        start = index * self._max_seq_len
        tokens = self._split.read(start, min(start + self._max_seq_len + 1, self._split.tokens))
        inputs, labels = tokens[:-1], tokens[1:]
        if not self._separate_documents:
            return SequenceItem(inputs, labels)
        offsets = self._split.offsets
        first, last = np.searchsorted(offsets, (start, start + len(labels)), side="right").tolist()
        begins = offsets[first:last] - start  # of documents that begin behind the first token: 1 to len(labels)
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
            begin = max(begin, 1)  # nothing stands before a first token that could predict it
            labels[begin - 1 : max(stop - 1, 0)] = tokens[begin:stop]
        return SequenceItem(tokens[:-1], labels)

    def collate(self, items: Sequence[SequenceItem]) -> Batch:
        """Items side by side, padded on the right to the longest of them (conversations: to a multiple of 8)."""
        width = max(len(item.input_ids) for item in items)
        if self._sequences is None:
            width = self._max_seq_len  # a shorter one stands only at the end of held-out text
        else:
            width = min(-(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, self._max_seq_len)
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
        """Let go of the files, so that Windows can delete them."""
        self._split.close()
        if self._sequences is not None:
            self._sequences.close()


def _add_segments(batch: Batch, items: Sequence[SequenceItem]) -> Batch:
    """With the documents of its sequences. In `spans` what is behind the last one of a row counts as one, too."""
    rows, width = batch.input_ids.shape
    segments = np.full((rows, width), PADDING_SEGMENT, dtype=np.int32)
    positions = np.zeros((rows, width), dtype=np.int64)
    offsets: list[int] = []
    squares: list[int] = []
    for row, item in enumerate(items):
        length, begins = len(item.input_ids), np.asarray(item.document_starts)
        number = np.repeat(np.arange(len(begins)), np.diff(begins, append=length))
        segments[row, :length] = number
        positions[row, :length] = np.arange(length) - begins[number]
        bounds = [*item.document_starts, length] if length < width else list(item.document_starts)
        offsets += [row * width + bound for bound in bounds]
        lengths = np.diff(bounds, append=width)
        squares.append(int(lengths @ lengths))
    longest = int(np.diff(offsets, append=rows * width).max())
    return replace(
        batch,
        segments=torch.from_numpy(segments),
        positions=torch.from_numpy(positions),
        cu_seqlens=CuSeqlens(torch.tensor([*offsets, rows * width], dtype=torch.int32), longest),
        row_attention_pairs=tuple(squares),
    )


class _BatchSampler:
    """Sample indices of each micro-batch, from `start` in `epoch` and, if `endless`, through the epochs that follow.

    So loader processes read the next epoch's first batches before an epoch ends.
    """

    def __init__(self, order: EpochOrder, seed: int, shuffle: bool, endless: bool) -> None:
        self.order, self.seed, self.shuffle, self.endless = order, seed, shuffle, endless
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        start = self.start
        for epoch in itertools.count(self.epoch):
            for indices in self._epoch_batches(epoch, start):
                yield indices.tolist()
            if not self.endless or not self.order.samples:
                return
            start = 0

    def _epoch_batches(self, epoch: int, start: int) -> Iterator[Ids]:
        return self.order.shuffled_batches(start, self.seed, epoch) if self.shuffle else self.order.batches(start)


class BatchLoader:
    """Micro-batches of one split. Which samples they hold depends on epoch and position alone, not on who loads them.

    Positions count samples in the order of an epoch. A new `iterate_epoch` ends the previous one. Raises
    whatever a loader process raised.
    """

    def __init__(
        self,
        prepared: PreparedData,
        config: Config,
        split: SplitName = "train",
        device_type: str = "cpu",
    ) -> None:
        self._dataset = SequenceDataset(prepared, split)
        self._order = EpochOrder(len(self._dataset), config.batch_size, _shuffle_block_size(prepared))
        self._batch_sampler = _BatchSampler(self._order, config.seed, split == "train", config.persistent_workers)
        self._loader: DataLoader[SequenceItem] | None = None
        self._config = config
        self._iterator: Iterator[Batch] | None = None
        self._next_position: tuple[int, int] | None = (
            None  # epoch and position of the batch that the stream yields next
        )
        token_bytes = np.dtype(token_dtype(prepared.vocab_size)).itemsize
        self.settings = choose_loader_settings(config, device_type, prepared.train.tokens * token_bytes)
        if split == "validation" and self.settings.num_workers:  # not worth starting processes for
            self.settings = replace(self.settings, num_workers=0, prefetch_batches=config.prefetch_factor)

    @property
    def samples(self) -> int:
        """Sequences of the split."""
        return len(self._dataset)

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one epoch, a short last one included."""
        return -(-self.samples // self._order.batch_size)

    def iterate_epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches from position `start` to the end of an epoch (both from 0). Does not touch the global RNG."""
        if self._next_position != (epoch, start):
            self._batch_sampler.epoch, self._batch_sampler.start = epoch, start
            self._close_iterator()
            self._iterator = self._open_iterator()
        stream, self._next_position = self._iterator, None
        assert stream is not None
        position = start
        while position < self.samples:
            loaded = next(stream)
            position += loaded.input_ids.shape[0]
            if position == self.samples and self._batch_sampler.endless:
                self._next_position = epoch + 1 if self._batch_sampler.shuffle else epoch, 0
            yield replace(loaded, epoch=epoch)

    def step_batches(self, position: int, size: int) -> Iterator[list[Batch]]:
        """`size` micro-batches at a time, fewer at the end of an epoch, without end. `position`: samples that the run
        has used, over all epochs."""
        first, start = divmod(position, self.samples)
        for epoch in itertools.count(first):
            batches = self.iterate_epoch(epoch, start)
            while window := list(itertools.islice(batches, size)):
                yield window
            start = 0

    def iterate_samples(self, numbers: Ids, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Sequences `numbers` in micro-batches of `batch_size`: every `world`-th batch, from number `rank` on."""
        self._close_iterator()
        size = self._config.batch_size
        starts = range(rank * size, len(numbers), world * size)
        self._iterator = self._prefetch(numbers[start : start + size].tolist() for start in starts)
        return self._iterator

    def _open_iterator(self) -> Iterator[Batch]:
        if self.settings.num_workers:
            return self._load_in_workers()
        return self._prefetch(self._batch_sampler)

    def _prefetch(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        """Batches of these sequences, loaded in this process."""
        if not self.settings.prefetch_batches:
            return self._load_in_process(batches)
        if not self.settings.pin_memory:
            return PrefetchIterator(self._load_in_process(batches), self.settings.prefetch_batches)
        # A thread begins with the first GPU as its device, and pinning there would take memory of it on every rank.
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device())
        return PrefetchIterator(self._load_in_process(batches), self.settings.prefetch_batches, set_device)

    def _load_in_process(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        for indices in batches:
            batch = self._dataset.collate(self._dataset.__getitems__(indices))
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
                # Without its own generator DataLoader draws a seed from the global one, and resume is not exact.
                generator=torch.Generator().manual_seed(0),
            )
        return iter(self._loader)

    def _close_iterator(self) -> None:
        """End a thread, or processes that are not to stay."""
        stream, self._iterator, self._next_position = self._iterator, None, None
        if isinstance(stream, PrefetchIterator):
            stream.close()
        elif stream is not None and self._loader is not None and not self._config.persistent_workers:
            _shutdown_workers(stream)

    def close(self) -> None:
        """End the thread or the loader processes, and let go of the files."""
        if self._loader is not None and self._iterator is not None:
            _shutdown_workers(self._iterator)
        self._close_iterator()
        self._loader = None
        self._dataset.close()


def _shutdown_workers(stream: object) -> None:
    """End the processes of a `DataLoader` iterator now. Where torch no longer has this private method, they end when
    the iterator is deleted."""
    end = getattr(stream, "_shutdown_workers", None)
    if end is not None:
        end()


def _shuffle_block_size(prepared: PreparedData) -> int:
    """Samples that stay together when they are shuffled, so that not every row is looked up by itself; 0: none."""
    if prepared.token_cache:
        return 0
    from trainer_core.data.uncached import SHUFFLE_BLOCK_SIZE  # here: it brings all that reads and encodes files

    return (
        max(1, SHUFFLE_BLOCK_SIZE * prepared.train.samples // prepared.train.documents)
        if prepared.packed
        else SHUFFLE_BLOCK_SIZE
    )


def _ignore_interrupts(worker: int) -> None:
    """Ctrl+C reaches every process of a terminal; only the trainer answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
