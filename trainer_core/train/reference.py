"""Log-probabilities of the reference model for a run that changes it: computed before the first step, kept on disk.

An adapter that can be switched off needs none of this (see `preferences.reference_logps`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batch import Batch, ReferenceLogps
from trainer_core.data.loader import BatchLoader
from trainer_core.messages import TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.system import files
from trainer_core.train.batch_division import without_labels
from trainer_core.train.oom import OomHandler
from trainer_core.train.parallel import Parallel
from trainer_core.train.preferences import USES_REFERENCE
from trainer_core.train.process_group import ProcessGroup

FILE: Final = "reference-{split}.npy"


def is_needed(config: Config) -> bool:
    """Whether training changes the weights of the reference."""
    return config.objective in USES_REFERENCE and (config.method == "full" or config.lora_embeddings)


def read(path: Path, shape: tuple[int, int]) -> ReferenceLogps:
    """Raises `resume.no_reference`, also for a file of another objective, which has other columns."""
    try:
        found: ReferenceLogps = np.load(path, allow_pickle=False)
        if found.dtype == np.float32 and found.shape == shape:
            return found
    except (OSError, ValueError, EOFError):
        pass
    raise TraindeckError("resume.no_reference", path=str(path))


def write(path: Path, logps: ReferenceLogps) -> None:
    content = io.BytesIO()
    np.save(content, logps, allow_pickle=False)
    with files.translate_os_errors(path):
        files.write_atomic(path, content.getvalue())


def copy_files(run: Path, target: Path) -> None:
    """Copy the files of a run to another one that continues from a checkpoint of it."""
    for path in run.glob(FILE.format(split="*")):
        with files.translate_os_errors(target):
            files.write_atomic(target / path.name, path.read_bytes())


class ReferencePass:
    """Computes the log-probabilities of all sequences of a split, on all ranks."""

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        device: torch.device,
        context: RunContext,
        group: ProcessGroup,
        parallel: Parallel,
        oom: OomHandler,
    ) -> None:
        """`compute`: the rows of `ReferenceLogps` for a batch."""
        self._compute, self._device, self._context = compute, device, context
        self._group, self._parallel, self._oom = group, parallel, oom

    def load(self, path: Path, data: BatchLoader, poll: Callable[[], None], step: int) -> ReferenceLogps:
        """Read the file of the run, or compute and write it. Raises `resume.no_reference` if it is missing after the
        first step.
        """
        stored, values = self._group.on_rank_zero(path.exists), torch.zeros(data.samples, data.most_conversations)
        if not stored and step:
            raise TraindeckError("resume.no_reference", path=str(path))
        if not stored:
            values = self._compute_all(data, poll)
        elif self._group.rank == 0:
            values = torch.from_numpy(read(path, (data.samples, data.most_conversations)))
        values = values.to(self._device)
        self._group.sum(values)
        found: ReferenceLogps = values.cpu().numpy()
        if not stored:
            self._group.on_rank_zero(lambda: write(path, found))
        return found

    @torch.no_grad()
    def _compute_all(self, data: BatchLoader, poll: Callable[[], None]) -> Tensor:
        """Of the sequences of this rank; zeros for the others."""
        values = torch.zeros(data.samples, data.most_conversations, device=self._device)
        total, ranks = math.ceil(data.samples / data.batch_size), self._group.world_size
        batches = data.iterate_samples(np.arange(data.samples), self._group.rank, ranks)
        for done in range(0, total, ranks):
            poll()
            batch = next(batches, None)
            found = self._logps(None if batch is None else batch.to(self._device), data)
            if batch is not None:
                rows, others = list(batch.sample_ids), int(batch.mismatched is not None)
                values[rows, : found.shape[1] - others] = found[:, : found.shape[1] - others]
                if others:
                    values[rows, -1] = found[:, -1]
            self._context.progress("evaluating", min(done + ranks, total), total, "batches")
        return values

    def _logps(self, batch: Batch | None, data: BatchLoader) -> Tensor:
        """Of this rank's batch, if it has one. With sharded weights, all ranks compute as many parts."""

        def parts() -> list[Batch]:
            return self._oom.split([batch] if batch is not None else [])

        def compute(some: list[Batch], spare: Sequence[Batch] = ()) -> Tensor:
            found = [self._parallel.forward(self._compute, part) for part in (*some, *spare)][: len(some)]
            return torch.cat(found) if found else torch.zeros(0, 0, device=self._device)

        if not self._parallel.is_sharded:
            return self._oom.run_step(lambda: compute(parts()), lambda: None, 0)
        own = parts()
        spare = without_labels(next(data.iterate_samples(np.zeros(1, np.int64))).to(self._device))
        with self._oom.restart_on_oom(0):
            return compute(own, [spare] * (self._group.max(len(own))[0] - len(own)))
