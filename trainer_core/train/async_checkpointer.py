"""Asynchronous checkpoint writer (`background_saving`): training waits only while its state is copied.

At most one write is in progress. Its failure is raised in the training thread, at the next step boundary or where the
write is waited for. A full disk is waited for.
"""

from __future__ import annotations

import math
import time
from concurrent import futures
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.system.memory import system_memory
from trainer_core.train import checkpoint_writer
from trainer_core.train.checkpoint_writer import CheckpointContent, RetentionPolicy, Shards
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup
from trainer_core.train.step_timer import StepClock

_MIN_FREE_SHARE: Final = 0.1  # share of system memory that copies leave free
_POLL_S: Final = 0.2  # interval of signal checks while waiting for a write
_RETRY_S: Final = 10.0  # delay of the next attempt on a full disk, even if free space seems unchanged
_REMINDER_INTERVAL_S: Final = 300.0
_MIB: Final = 1024 * 1024


class AsyncCheckpointer:
    """Writes one checkpoint at a time, in a thread if there is memory for a copy.

    With `patient` off it does not wait for disk space, because the run is ending.
    """

    def __init__(
        self,
        config: Config,
        run: RunDir,
        context: RunContext,
        device: torch.device,
        clock: StepClock,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._group = group
        self._config, self._run, self._context, self._clock = config, run, context, clock
        self._copies = HostCopies(pinned=device.type == "cuda" and config.pin_memory)
        # Start the thread now: starting one without free memory may block forever.
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._written: futures.Future[object] = self._thread.submit(bool)
        self._keep = RetentionPolicy(config.keep_last, config.keep_best)
        self._pending: CheckpointContent | None = None  # not yet known to be on disk
        self._failure: Exception | None = None  # of `_pending`
        self.saved: tuple[int, float | None] = (-1, None)  # step and validation loss of the newest checkpoint
        self.patient = True
        self._reminded = -math.inf  # time of the last warning about a full disk

    def save(self, content: CheckpointContent, keep_step: int) -> None:
        """Start to write. Rotation keeps the checkpoint of `keep_step`, too.

        Raises the failure of the previous write, `StopRequested` while waiting for disk space, and `disk.unsaved` if
        there is no time to wait.
        """
        if self.patient:
            self.wait()
        else:
            self.join()
            self._pending = self._failure = None  # superseded by this save
        if content.rows:
            self._group.on_rank_zero(lambda: self._wait_for_space(content))
        else:
            self._wait_for_space(content)
        self._keep = replace(self._keep, step=keep_step)
        self.saved = (content.step, content.eval_loss)
        with self._clock.saving():
            copy = self._copy(content)
            if copy is not None:
                self._start(copy)
                return
            self._pending = content
            self._write(content, self._group.new_shards() if content.rows else None)
        self.wait()

    def poll(self) -> None:
        """Check whether the write has finished. Raises as `save` does."""
        while self._pending is not None and self._written.done():
            content, failure = self._pending, self._failure
            if isinstance(failure, TraindeckError) and failure.code == "disk.full" and not content.rows:
                self._wait_for_space(content, failure)
                self._start(content)
                continue
            self._pending = self._failure = None
            self._reminded = -math.inf
            if failure is not None:
                self.saved = (-1, None)
                if not (self.patient and content.kind in ("regular", "best") and _is_held(failure)):
                    raise failure
                self._warn_not_saved(content, failure)  # the next save succeeds or reports it again

    def join(self) -> None:
        """Wait until the current write ends, successful or not."""
        if not self._written.done():
            with self._clock.saving():
                while not self._written.done():
                    futures.wait([self._written], _POLL_S)

    def wait(self) -> None:
        """Wait until everything is on disk. Raises as `save` does."""
        while self._pending is not None:
            self.join()
            self.poll()

    def close(self) -> None:
        """Wait for the current write and report its failure as a warning: the run ends."""
        self.join()
        if self._pending is not None and self._failure is not None:
            self._warn_not_saved(self._pending, self._failure)
        self._pending = self._failure = None
        self._copies.clear()
        self._thread.shutdown()

    def _warn_not_saved(self, content: CheckpointContent, failure: Exception) -> None:
        reason = str(failure).partition("\n")[0]
        self._context.warn("checkpoint.not_saved", step=content.step, reason=reason)

    def _start(self, content: CheckpointContent) -> None:
        self._pending, self._failure = content, None
        self._written = self._thread.submit(self._write, content, self._group.new_shards() if content.rows else None)

    def _write(self, content: CheckpointContent, shards: Shards | None) -> None:
        try:
            self._copies.synchronize()
            if self._group.rank and shards is not None:
                checkpoint_writer.write_shards(content, shards)
            else:
                self._context.emit(checkpoint_writer.write(self._run, content, self._keep, shards))
        except Exception as error:  # noqa: BLE001 - the training thread gets it
            self._failure = error

    def _copy(self, content: CheckpointContent) -> CheckpointContent | None:
        """Copy the content to host memory. None: no memory for it, or training waits for the write."""
        total, available = system_memory()
        if self._config.low_memory or not self._config.background_saving:
            return None
        if content.copied:
            return content
        if self._copies.missing_bytes(content) > available - _MIN_FREE_SHARE * total:
            return None
        try:
            return self._copies.copy(content)
        except (MemoryError, RuntimeError):  # a limit below the machine's memory
            self._copies.clear()
            return None

    # --- a full disk ---------------------------------------------------------------------------------

    def _wait_for_space(self, content: CheckpointContent, failure: TraindeckError | None = None) -> None:
        """Wait until there is room for `content`; after a `failure` also until free space changes or `_RETRY_S` have
        passed, since quotas are invisible.
        """
        needed, place = content.disk_bytes, self._run.checkpoints
        begun, free_then = time.monotonic(), files.free_bytes(place)

        def ready() -> bool:
            now, free = time.monotonic(), files.free_bytes(place)
            if free >= needed and (failure is None or free > free_then or now - begun > _RETRY_S):
                return True
            if now - self._reminded >= _REMINDER_INTERVAL_S and self.patient:
                self._reminded = now
                self._context.warn(
                    "disk.waiting", path=str(place), needed_mib=-(-needed // _MIB), free_mib=free // _MIB
                )
            return False

        if ready():
            return
        if self.patient:
            self._context.wait("disk_full", ready)
            return
        raise TraindeckError(
            "disk.unsaved",
            path=str(place),
            step=content.step,
            saved=max((info.step for info in checkpoint_dir.list_infos(place)), default=0),
            needed_mib=-(-needed // _MIB),
            free_mib=files.free_bytes(place) // _MIB,
        ) from failure


class HostCopies:
    """Host memory for one copy of all tensors, reused by every save. `pinned`: page-locked, for asynchronous copies
    from a GPU.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._kept: dict[tuple[str, str], Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def missing_bytes(self, content: CheckpointContent) -> int:
        """Additional memory that a copy needs."""
        spare = 2 if self._pinned else 1  # page-locked memory is allocated in powers of two
        return spare * sum(
            tensor.nbytes
            for file, tensors in content.tensors.items()
            for name, tensor in tensors.items()
            if not _fits(self._kept.get((file, name)), tensor)
        )

    def copy(self, content: CheckpointContent) -> CheckpointContent:
        """Return `content` with copies of its tensors as of this point in the current stream."""
        copies = {
            file: {name: self._copy((file, name), tensor) for name, tensor in tensors.items()}
            for file, tensors in content.tensors.items()
        }
        if any(tensor.is_cuda for tensors in content.tensors.values() for tensor in tensors.values()):
            self._copied = torch.cuda.current_stream().record_event()
        return replace(content, tensors=copies)

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        kept = self._kept.get(key)
        if kept is None or not _fits(kept, tensor):
            kept = self._kept[key] = self._allocate(tensor)
        return kept.copy_(tensor, non_blocking=True)

    def _allocate(self, tensor: Tensor) -> Tensor:
        if self._pinned and tensor.is_cuda:
            try:
                return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            except RuntimeError:  # the system refuses to lock more pages
                self._pinned = False
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def synchronize(self) -> None:
        """Wait until the copies from a GPU are complete."""
        if self._copied is not None:
            self._copied.synchronize()

    def clear(self) -> None:
        """Free the memory."""
        self._kept.clear()


def _fits(kept: Tensor | None, tensor: Tensor) -> bool:
    return kept is not None and kept.shape == tensor.shape and kept.dtype == tensor.dtype


def _is_held(failure: Exception) -> bool:
    """Whether another program holds a file open for longer than it was retried."""
    return isinstance(failure.__cause__, OSError) and files.is_sharing_violation(failure.__cause__)
