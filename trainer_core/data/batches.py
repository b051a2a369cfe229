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
from trainer_core.data.loading import Ahead, choose
from trainer_core.data.order import EpochOrder
from trainer_core.data.sequences import WIDTH_MULTIPLE, Sequences, folder_of, windows
from trainer_core.data.store import token_type
from trainer_core.model.attention import Spans

if TYPE_CHECKING:  # loader processes that are started anew need not import all that prepares data
    from trainer_core.data.prepare import Prepared

IGNORED: Final = -100
PADDING: Final = -1  # in `Batch.segments`

Ids = npt.NDArray[np.int64]
SplitName = Literal["train", "validation"]


class Item(NamedTuple):
    """One sequence: two arrays (T,), the places in it at which documents begin, 0 first, and its number."""

    input_ids: Ids
    labels: Ids
    begins: Sequence[int] = (0,)
    number: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    `segments` are there where sequences hold several documents that do not see each other; then tokens
    attend only within their segment, and `positions` count from 0 in each. Without them attention is
    causal over the whole sequence, which is right for one document with padding behind it.
    """

    input_ids: Tensor  # (B, T) int64
    labels: Tensor  # (B, T) int64, IGNORED where nothing is to be predicted
    tokens: int  # labels that count
    samples: int  # sequences of text, or conversations
    segments: Tensor | None = None  # (B, T) int32: number of the document in its sequence; PADDING behind the last
    positions: Tensor | None = None  # (B, T) int64
    spans: Spans | None = None  # the documents of `segments` in another form, for attention that takes them so
    ids: tuple[int, ...] = ()  # numbers of its sequences in the split, from 0
    epoch: int = 0  # from 0
    row_tokens: tuple[int, ...] = ()  # labels that count in each sequence; empty: to be counted
    row_squares: tuple[int, ...] = ()  # lengths of each sequence's documents, squared and added up; empty: not divided

    @property
    def attended(self) -> int:
        """Pairs of positions that attention is about, before causality halves them. Asks no device."""
        return sum(self._row_squares())

    def _row_squares(self) -> tuple[int, ...]:
        rows, width = self.input_ids.shape
        return self.row_squares or (width**2,) * rows

    def pin_memory(self) -> Batch:
        """The same in page-locked memory. DataLoader calls this by its name."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same on `device`. From page-locked memory the copy runs beside what the device does."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            input_ids=change(self.input_ids),
            labels=change(self.labels),
            segments=None if self.segments is None else change(self.segments),
            positions=None if self.positions is None else change(self.positions),
            spans=None if self.spans is None else Spans(change(self.spans.offsets), self.spans.longest),
        )

    def rows(self, many: int) -> list[Batch]:
        """Its sequences, at most so many in each part; `samples` and `ids` are not divided."""
        count = self.input_ids.shape[0]
        return [self] if count <= many else [self.part(slice(row, row + many)) for row in range(0, count, many)]

    def part(self, rows: slice) -> Batch:
        """Some of its sequences; as `rows`. Waits for a GPU where `row_tokens` are not known."""
        counts = self.row_tokens[rows]
        return replace(
            self,
            input_ids=self.input_ids[rows],
            labels=self.labels[rows],
            tokens=sum(counts) if counts else int((self.labels[rows] != IGNORED).sum()),
            row_tokens=counts,
            row_squares=self.row_squares[rows],
            segments=None if self.segments is None else self.segments[rows],
            positions=None if self.positions is None else self.positions[rows],
            spans=None,
        )

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        offsets = None if self.spans is None else self.spans.offsets
        there = (self.input_ids, self.labels, self.segments, self.positions, offsets)
        return [tensor for tensor in there if tensor is not None]


def side_by_side(parts: list[Batch]) -> Batch:
    """Batches of one width as one; in page-locked memory where they are. `ids` are of the first."""
    first, known = parts[0], all(part.row_tokens for part in parts)
    whole = replace(
        first,
        input_ids=torch.cat([part.input_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        tokens=sum(part.tokens for part in parts),
        samples=sum(part.samples for part in parts),
        row_tokens=tuple(count for part in parts for count in part.row_tokens) if known else (),
        row_squares=tuple(square for part in parts for square in part._row_squares()),
        spans=None,
    )
    if any(part.segments is not None for part in parts):
        segments, positions = zip(*map(_documents, parts), strict=True)
        whole = replace(whole, segments=torch.cat(segments), positions=torch.cat(positions))
    return whole.pin_memory() if first.input_ids.is_pinned() else whole


def _documents(batch: Batch) -> tuple[Tensor, Tensor]:
    """`segments` and `positions`; of sequences that are not divided those of one document."""
    if batch.segments is not None and batch.positions is not None:
        return batch.segments, batch.positions
    columns = torch.arange(batch.input_ids.shape[1]).expand(batch.input_ids.shape)
    return torch.zeros_like(batch.input_ids, dtype=torch.int32), columns


class Samples(Dataset[Item]):
    """The sequences of one split, as items of at most `max_seq_len` positions.

    Plain text: windows of the whole text, one after the other. Unless tokens attend across documents, a
    window is divided where a document begins, and that document's first token is not predicted.
    Conversations: one a sequence, or several where packed, each cut at its end where it is too long, with
    labels for the spans that are trained on alone.
    Picklable; each process opens the memory maps at its first item.
    """

    def __init__(self, prepared: Prepared, split: SplitName) -> None:
        self._split = prepared.split(split)
        self._length = prepared.max_seq_len
        self._pad = prepared.end_of_text
        self._divided = not prepared.attend_across_documents
        counts = prepared.train if split == "train" else prepared.validation
        self._sequences: Sequences | None = None
        if prepared.task == "sft":
            folder = folder_of(prepared.folder, prepared.max_seq_len, prepared.packed)
            self._sequences = Sequences(folder / split, prepared.packed)
        self._count = counts.samples if self._sequences else windows(counts.tokens, self._length, split)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Item:
        if self._sequences is None:
            return self._window(index)._replace(number=index)
        parts = [self._conversation(document) for document in map(int, self._sequences.documents(index))]
        if len(parts) == 1:
            return parts[0]._replace(number=index)
        begins = [0, *itertools.accumulate(len(part.input_ids) for part in parts)]
        inputs, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("input_ids", "labels"))
        return Item(inputs, labels, begins[:-1], index)

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        return [self[index] for index in indices]

    def _window(self, index: int) -> Item:
        start = index * self._length
        tokens = self._split.read(start, min(start + self._length + 1, self._split.tokens))
        inputs, labels = tokens[:-1], tokens[1:]
        if not self._divided:
            return Item(inputs, labels)
        offsets = self._split.offsets
        first, last = np.searchsorted(offsets, (start, start + len(labels)), side="right").tolist()
        begins = offsets[first:last] - start  # of documents that begin behind the first token: 1 to len(labels)
        labels = labels.copy()
        labels[begins - 1] = IGNORED
        return Item(inputs, labels, [0, *begins[begins < len(inputs)].tolist()])

    def _conversation(self, document: int) -> Item:
        split = self._split
        start, end = split.offsets[document : document + 2].tolist()
        tokens = split.read(start, min(end, start + self._length + 1))
        labels = np.full(len(tokens) - 1, IGNORED, dtype=np.int64)
        first, last = split.span_offsets[document : document + 2].tolist()
        for begin, stop in split.spans[first:last].tolist():
            begin = max(begin, 1)  # nothing stands before a first token that could predict it
            labels[begin - 1 : max(stop - 1, 0)] = tokens[begin:stop]
        return Item(tokens[:-1], labels)

    def collate(self, items: Sequence[Item]) -> Batch:
        """Items side by side, padded on the right to the longest of them (conversations: to a multiple of 8)."""
        width = max(len(item.input_ids) for item in items)
        if self._sequences is None:
            width = self._length  # a shorter one stands only at the end of held-out text
        else:
            width = min(-(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, self._length)
        input_ids = np.full((len(items), width), self._pad, dtype=np.int64)
        labels = np.full((len(items), width), IGNORED, dtype=np.int64)
        for row, item in enumerate(items):
            input_ids[row, : len(item.input_ids)] = item.input_ids
            labels[row, : len(item.labels)] = item.labels
        counts = np.count_nonzero(labels != IGNORED, axis=1).tolist()
        batch = Batch(
            torch.from_numpy(input_ids),
            torch.from_numpy(labels),
            tokens=sum(counts),
            row_tokens=tuple(counts),
            samples=len(items) if self._sequences is None else sum(len(item.begins) for item in items),
            ids=tuple(item.number for item in items),
        )
        return _divided(batch, items) if any(len(item.begins) > 1 for item in items) else batch

    def close(self) -> None:
        """Let go of the files, so that Windows can delete them."""
        self._split.close()
        if self._sequences is not None:
            self._sequences.close()


def _divided(batch: Batch, items: Sequence[Item]) -> Batch:
    """With the documents of its sequences. In `spans` what is behind the last one of a row counts as one, too."""
    rows, width = batch.input_ids.shape
    segments = np.full((rows, width), PADDING, dtype=np.int32)
    positions = np.zeros((rows, width), dtype=np.int64)
    offsets: list[int] = []
    squares: list[int] = []
    for row, item in enumerate(items):
        length, begins = len(item.input_ids), np.asarray(item.begins)
        number = np.repeat(np.arange(len(begins)), np.diff(begins, append=length))
        segments[row, :length] = number
        positions[row, :length] = np.arange(length) - begins[number]
        bounds = [*item.begins, length] if length < width else list(item.begins)
        offsets += [row * width + bound for bound in bounds]
        lengths = np.diff(bounds, append=width)
        squares.append(int(lengths @ lengths))
    longest = int(np.diff(offsets, append=rows * width).max())
    return replace(
        batch,
        segments=torch.from_numpy(segments),
        positions=torch.from_numpy(positions),
        spans=Spans(torch.tensor([*offsets, rows * width], dtype=torch.int32), longest),
        row_squares=tuple(squares),
    )


class _BatchSampler:
    """Sample indices of each micro-batch, from `start` in `epoch` and, if `endless`, through the epochs that follow.

    So loader processes read the next epoch's first batches before an epoch ends.
    """

    def __init__(self, order: EpochOrder, seed: int, shuffled: bool, endless: bool) -> None:
        self.order, self.seed, self.shuffled, self.endless = order, seed, shuffled, endless
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        start = self.start
        for epoch in itertools.count(self.epoch):
            for indices in self._epoch(epoch, start):
                yield indices.tolist()
            if not self.endless or not self.order.samples:
                return
            start = 0

    def _epoch(self, epoch: int, start: int) -> Iterator[Ids]:
        return self.order.shuffled(start, self.seed, epoch) if self.shuffled else self.order.batches(start)


class Loader:
    """Micro-batches of one split. Which samples they hold depends on epoch and position alone, not on who loads them.

    Positions count samples in the order of an epoch. One `iterate` at a time: a new one ends the one before. Raises
    whatever a loader process raised.
    """

    def __init__(
        self,
        prepared: Prepared,
        config: Config,
        split: SplitName = "train",
        device_type: str = "cpu",
    ) -> None:
        self._dataset = Samples(prepared, split)
        self._order = EpochOrder(len(self._dataset), config.batch_size, _neighbours(prepared))
        self._batches = _BatchSampler(self._order, config.seed, split == "train", config.persistent_workers)
        self._loader: DataLoader[Item] | None = None
        self._config = config
        self._stream: Iterator[Batch] | None = None
        self._next: tuple[int, int] | None = None  # epoch and position of the batch that the stream yields next
        token_bytes = np.dtype(token_type(prepared.vocab_size)).itemsize
        self.choice = choose(config, device_type, prepared.train.tokens * token_bytes)
        if split == "validation" and self.choice.num_workers:  # not worth starting processes for
            self.choice = replace(self.choice, num_workers=0, ahead=config.prefetch_factor)

    @property
    def samples(self) -> int:
        """Sequences of the split."""
        return len(self._dataset)

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one epoch, a short last one included."""
        return -(-self.samples // self._order.batch_size)

    def iterate(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches from position `start` to the end of an epoch (both from 0). Does not touch the global RNG."""
        if self._next != (epoch, start):
            self._batches.epoch, self._batches.start = epoch, start
            self._end_stream()
            self._stream = self._open()
        stream, self._next = self._stream, None
        assert stream is not None
        position = start
        while position < self.samples:
            loaded = next(stream)
            position += loaded.input_ids.shape[0]
            if position == self.samples and self._batches.endless:
                self._next = epoch + 1 if self._batches.shuffled else epoch, 0
            yield replace(loaded, epoch=epoch)

    def windows(self, position: int, size: int) -> Iterator[list[Batch]]:
        """`size` micro-batches at a time, fewer at the end of an epoch, without end. `position`: samples that the run
        has used, over all epochs."""
        first, start = divmod(position, self.samples)
        for epoch in itertools.count(first):
            batches = self.iterate(epoch, start)
            while window := list(itertools.islice(batches, size)):
                yield window
            start = 0

    def batches_of(self, numbers: Ids, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Sequences `numbers` in micro-batches of `batch_size`: every `world`-th batch, from number `rank` on."""
        self._end_stream()
        size = self._config.batch_size
        starts = range(rank * size, len(numbers), world * size)
        self._stream = self._ahead(numbers[start : start + size].tolist() for start in starts)
        return self._stream

    def _open(self) -> Iterator[Batch]:
        if self.choice.num_workers:
            return self._from_processes()
        return self._ahead(self._batches)

    def _ahead(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        """Batches of these sequences, loaded in this process."""
        if not self.choice.ahead:
            return self._from_here(batches)
        if not self.choice.pin_memory:
            return Ahead(self._from_here(batches), self.choice.ahead)
        # A thread begins with the first GPU as its device, and pinning there would take memory of it on every rank.
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device())
        return Ahead(self._from_here(batches), self.choice.ahead, set_device)

    def _from_here(self, batches: Iterable[list[int]]) -> Iterator[Batch]:
        for indices in batches:
            batch = self._dataset.collate(self._dataset.__getitems__(indices))
            yield batch.pin_memory() if self.choice.pin_memory else batch

    def _from_processes(self) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = DataLoader(
                self._dataset,
                batch_sampler=self._batches,
                num_workers=self.choice.num_workers,
                collate_fn=self._dataset.collate,
                pin_memory=self.choice.pin_memory,
                prefetch_factor=self._config.prefetch_factor,
                persistent_workers=self._config.persistent_workers,
                worker_init_fn=_ignore_interrupts,
                # Without its own generator DataLoader draws a seed from the global one, and resume is not exact.
                generator=torch.Generator().manual_seed(0),
            )
        return iter(self._loader)

    def _end_stream(self) -> None:
        """End a thread, or processes that are not to stay."""
        stream, self._stream, self._next = self._stream, None, None
        if isinstance(stream, Ahead):
            stream.close()
        elif stream is not None and self._loader is not None and not self._config.persistent_workers:
            _end_workers(stream)

    def close(self) -> None:
        """End the thread or the loader processes, and let go of the files."""
        if self._loader is not None and self._stream is not None:
            _end_workers(self._stream)
        self._end_stream()
        self._loader = None
        self._dataset.close()


def _end_workers(stream: object) -> None:
    """End the processes of a `DataLoader` iterator now. Where torch no longer has this private method, they end when
    the iterator is deleted."""
    end = getattr(stream, "_shutdown_workers", None)
    if end is not None:
        end()


def _neighbours(prepared: Prepared) -> int:
    """Samples that stay together when they are shuffled, so that not every row is looked up by itself; 0: none."""
    if prepared.token_cache:
        return 0
    from trainer_core.data.direct import BLOCK  # here: it brings all that reads and encodes files

    return max(1, BLOCK * prepared.train.samples // prepared.train.documents) if prepared.packed else BLOCK


def _ignore_interrupts(worker: int) -> None:
    """Ctrl+C reaches every process of a terminal; only the trainer answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
