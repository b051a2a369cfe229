"""From the token cache to micro-batches: the one file here that needs torch.

Shapes: B sequences, T positions. Labels are shifted already: `labels[b, t]` is the token that follows
`input_ids[b, t]`, and -100 where it does not count, so that the loss is
`cross_entropy(logits.flatten(0, 1), labels.flatten())`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from trainer_core.config import Config
from trainer_core.data.order import Plan
from trainer_core.data.prepare import Prepared, lengths, windows

IGNORED: Final = -100
_ROUND: Final = 8  # padded lengths are multiples of it: tensor cores like them, and fewer shapes occur
_SMALL_MEMORY: Final = 15e9
_MOST_WORKERS: Final = 16

Item = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
SplitName = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on the CPU."""

    input_ids: torch.Tensor  # (B, T) int64
    labels: torch.Tensor  # (B, T) int64, IGNORED where nothing is to be predicted
    tokens: int  # labels that count
    samples: int  # B

    def pin_memory(self) -> Batch:
        """The same in page-locked memory. DataLoader calls this by its name."""
        return Batch(self.input_ids.pin_memory(), self.labels.pin_memory(), self.tokens, self.samples)


class Samples(Dataset[Item]):
    """The samples of one split: item i is (input_ids, labels), both (T,) int64.

    Plain text: window i of `max_seq_len` tokens. Pairs: prompt and response in ChatML, cut at the end
    where longer than `max_seq_len`, with labels for the response (and its `<|im_end|>`) alone.
    Picklable; each process opens the memory maps at its first item.
    """

    def __init__(self, prepared: Prepared, split: SplitName) -> None:
        self._split = prepared.split(split)
        self._length = prepared.max_seq_len
        self._pairs = prepared.task == "sft"
        self._pad = prepared.end_of_text
        counts = prepared.train if split == "train" else prepared.validation
        self._count = counts.samples if self._pairs else windows(counts.tokens, self._length, split)
        self._all_usable = self._count == counts.documents
        self._usable: npt.NDArray[np.int64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_usable": None}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Item:
        return self._pair(index) if self._pairs else self._window(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        return [self[index] for index in indices]

    def _window(self, index: int) -> Item:
        start = index * self._length
        tokens = self._split.read(start, min(start + self._length + 1, self._split.tokens))
        missing = self._length + 1 - len(tokens)
        if not missing:
            return tokens[:-1], tokens[1:]
        inputs = np.pad(tokens[:-1], (0, missing), constant_values=self._pad)
        return inputs, np.pad(tokens[1:], (0, missing), constant_values=IGNORED)

    def _pair(self, index: int) -> Item:
        document = index if self._all_usable else int(self._usable_documents()[index])
        start, end = self._split.offsets[document : document + 2].tolist()
        tokens = self._split.read(start, min(end, start + self._length + 1))
        labels = tokens[1:].copy()
        labels[: int(self._split.responses[document]) - 1] = IGNORED
        return tokens[:-1], labels

    def _usable_documents(self) -> npt.NDArray[np.int64]:
        if self._usable is None:
            self._usable = np.flatnonzero(lengths(self._split, self._length).usable)
        return self._usable

    def collate(self, items: Sequence[Item]) -> Batch:
        """Items side by side, padded on the right to the longest of them (a multiple of 8 for pairs)."""
        longest = max(len(inputs) for inputs, _ in items)
        width = min(-(-longest // _ROUND) * _ROUND, self._length) if self._pairs else longest
        input_ids = np.full((len(items), width), self._pad, dtype=np.int64)
        labels = np.full((len(items), width), IGNORED, dtype=np.int64)
        for row, (inputs, targets) in enumerate(items):
            input_ids[row, : len(inputs)] = inputs
            labels[row, : len(targets)] = targets
        counted = int(np.count_nonzero(labels != IGNORED))
        return Batch(torch.from_numpy(input_ids), torch.from_numpy(labels), counted, len(items))

    def close(self) -> None:
        """Let go of the files, so that Windows can delete them."""
        self._split.close()


@dataclass(frozen=True, slots=True)
class Choice:
    """How batches are loaded, and why: `reason` is a short code, shown with the numbers.

    set: as configured; low_memory: spared on purpose or under 15 GB of RAM; cpu: the cores compute, and
    a memory-mapped cache needs no help; gpu: half of the cores, at most four.
    """

    num_workers: int
    pin_memory: bool
    reason: Literal["set", "low_memory", "cpu", "gpu"]
    cores: int
    memory_bytes: int


def choose(config: Config, device_type: str, cores: int | None = None, memory_bytes: int | None = None) -> Choice:
    """Loader processes and pinning for this machine (or for the one described)."""
    cores = cores or os.cpu_count() or 1
    memory = memory_bytes or psutil.virtual_memory().total
    pin = config.pin_memory and device_type == "cuda" and memory >= _SMALL_MEMORY
    if config.low_memory:
        return Choice(0, False, "low_memory", cores, memory)
    if config.num_workers >= 0:  # what a person set counts, whatever the machine
        return Choice(min(config.num_workers, cores, _MOST_WORKERS), pin, "set", cores, memory)
    if memory < _SMALL_MEMORY:
        return Choice(0, False, "low_memory", cores, memory)
    if device_type == "cpu":
        return Choice(0, False, "cpu", cores, memory)
    return Choice(min(cores // 2, 4), pin, "gpu", cores, memory)


class _Batches:
    """The batch sampler: batches of sample indices of the epoch that is set, from the one that is set."""

    def __init__(self, plan: Plan, seed: int, shuffled: bool) -> None:
        self.plan, self.seed, self.shuffled = plan, seed, shuffled
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return self.plan.batches - self.start

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self.start, self.plan.batches):
            if self.shuffled:
                yield self.plan.indices(batch, self.seed, self.epoch).tolist()
            else:
                yield self.plan.positions(batch).tolist()


class Loader:
    """Micro-batches of one split for one rank. Batch k of an epoch is the same whoever loads it.

    One `iterate` at a time: a new one ends the one before. Raises whatever a loader process raised.
    """

    def __init__(
        self,
        prepared: Prepared,
        config: Config,
        split: SplitName = "train",
        device_type: str = "cpu",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._dataset = Samples(prepared, split)
        self._plan = Plan(len(self._dataset), config.batch_size, rank, world)
        self._batches = _Batches(self._plan, config.seed, shuffled=split == "train")
        self._config = config
        self._loader: DataLoader[Item] | None = None
        self.choice = choose(config, device_type)

    @property
    def samples(self) -> int:
        """Samples of the split, of all ranks together."""
        return len(self._dataset)

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one epoch on this rank, a short last one included."""
        return self._plan.batches

    def iterate(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Batches `start_batch` to the last of an epoch (counted from 0). Touches no global RNG."""
        self._batches.epoch, self._batches.start = epoch, start_batch
        if self.choice.num_workers:
            yield from self._workers()
            return
        for indices in self._batches:
            batch = self._dataset.collate(self._dataset.__getitems__(indices))
            yield batch.pin_memory() if self.choice.pin_memory else batch

    def _workers(self) -> DataLoader[Any]:
        if self._loader is None or not self._config.persistent_workers:
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
        return self._loader

    def close(self) -> None:
        """End the loader processes and let go of the files."""
        loader, self._loader = self._loader, None
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
        self._dataset.close()


def _ignore_interrupts(worker: int) -> None:
    """Ctrl+C reaches every process of a terminal; only the trainer answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
