"""Asynchronous checkpoint writer (`background_saving`): training waits only while its state is copied.

At most one write is in progress. Its failure is raised in the training thread, at the next step boundary or where the
write is waited for. A full disk is waited for.
"""

from __future__ import annotations

import math
import time
from concurrent import futures
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.protocol import CheckpointKind
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.system.memory import system_memory
from trainer_core.train import checkpoint_writer
from trainer_core.train.checkpoint_writer import CheckpointContent, RetentionPolicy
from trainer_core.train.step_timer import StepClock

_MIN_FREE_SHARE: Final = 0.1  # share of system memory that copies leave free
_POLL_S: Final = 0.2  # interval of signal checks while waiting for a write
_RETRY_S: Final = 10.0  # delay of the next attempt on a full disk, even if free space seems unchanged
_REMINDER_INTERVAL_S: Final = 300.0
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _SaveRequest:
    content: CheckpointContent
    kind: CheckpointKind
    eval_loss: float | None
    keep: RetentionPolicy


class AsyncCheckpointer:
    """Writes one checkpoint at a time, in a thread if there is memory for a copy.

    With `patient` off it does not wait for disk space, because the run is ending.
    """

    def __init__(
        self, config: Config, run: RunDir, session: RunContext, device: torch.device, clock: StepClock
    ) -> None:
        self._config, self._run, self._session, self._clock = config, run, session, clock
        self._copies = HostCopies(pinned=device.type == "cuda" and config.pin_memory)
        # Start the thread now: starting one without free memory may block forever.
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._written: futures.Future[object] = self._thread.submit(bool)
        self._order: _SaveRequest | None = None  # not yet known to be on disk
        self._failure: Exception | None = None  # of `_order`
        self.saved: tuple[int, float | None] = (
            -1,
            None,
        )  # newest checkpoint: step, validation loss
        self.patient = True
        self._reminded = -math.inf  # time of the last warning about a full disk

    def save(self, content: CheckpointContent, kind: CheckpointKind, eval_loss: float | None, keep_step: int) -> None:
        """Start to write. Raises the failure of the previous write, `StopRequested` while waiting for disk space, and
        `disk.unsaved` if there is no time to wait.
        """
        if self.patient:
            self.wait()
        else:
            self.join()
            self._order = self._failure = None  # superseded by this save
        order = _SaveRequest(
            content, kind, eval_loss, RetentionPolicy(self._config.keep_last, self._config.keep_best, keep_step)
        )
        self._wait_for_space(order)
        self.saved = (content.step, eval_loss)
        with self._clock.saving():
            copy = self._copy(content)
            if copy is not None:
                self._start(_SaveRequest(copy, kind, eval_loss, order.keep))
                return
            self._order = order
            self._write(order)
        self.wait()

    def poll(self) -> None:
        """Check whether the write has finished. Raises as `save` does."""
        while self._order is not None and not self._is_busy():
            order, failure = self._order, self._failure
            if isinstance(failure, TraindeckError) and failure.code == "disk.full":
                self._wait_for_space(order, failure)
                self._start(order)
                continue
            self._order = self._failure = None
            self._reminded = -math.inf
            if failure is not None:
                self.saved = (-1, None)
                if not (self.patient and order.kind in ("regular", "best") and _is_held(failure)):
                    raise failure
                self._warn_not_saved(order, failure)  # the next save succeeds or reports it again

    def join(self) -> None:
        """Wait until the current write ends, successful or not."""
        if self._is_busy():
            with self._clock.saving():
                while self._is_busy():
                    futures.wait([self._written], _POLL_S)

    def wait(self) -> None:
        """Wait until everything is on disk. Raises as `save` does."""
        while self._order is not None:
            self.join()
            self.poll()

    def close(self) -> None:
        """Wait for the current write and report its failure as a warning: the run ends."""
        self.join()
        if self._order is not None and self._failure is not None:
            self._warn_not_saved(self._order, self._failure)
        self._order = self._failure = None
        self._copies.clear()
        self._thread.shutdown()

    def _warn_not_saved(self, order: _SaveRequest, failure: Exception) -> None:
        reason = str(failure).partition("\n")[0]
        self._session.warn("checkpoint.not_saved", step=order.content.step, reason=reason)

    def _is_busy(self) -> bool:
        return not self._written.done()

    def _start(self, order: _SaveRequest) -> None:
        self._order, self._failure = order, None
        self._written = self._thread.submit(self._write, order)

    def _write(self, order: _SaveRequest) -> None:
        try:
            self._copies.synchronize()
            self._session.emit(
                checkpoint_writer.write(self._run, order.content, order.kind, order.eval_loss, order.keep)
            )
        except Exception as error:  # noqa: BLE001 - the training thread gets it
            self._failure = error

    def _copy(self, content: CheckpointContent) -> CheckpointContent | None:
        """Copy the content to host memory. None: no memory for it, or training waits for the write."""
        total, available = system_memory()
        if self._config.low_memory or not self._config.background_saving:
            return None
        if self._copies.missing_bytes(content) > available - _MIN_FREE_SHARE * total:
            return None
        try:
            return self._copies.copy(content)
        except (MemoryError, RuntimeError):  # a limit below the machine's memory
            self._copies.clear()
            return None

    # --- a full disk ---------------------------------------------------------------------------------

    def _wait_for_space(self, order: _SaveRequest, failure: TraindeckError | None = None) -> None:
        """Wait until there is room for `order`; after a `failure` also until free space changes or `_RETRY_S` have
        passed, since quotas are invisible.
        """
        needed, place = order.content.disk_bytes, self._run.checkpoints
        begun, free_then = time.monotonic(), files.free_bytes(place)

        def ready() -> bool:
            now, free = time.monotonic(), files.free_bytes(place)
            if free >= needed and (failure is None or free > free_then or now - begun > _RETRY_S):
                return True
            if now - self._reminded >= _REMINDER_INTERVAL_S and self.patient:
                self._reminded = now
                self._session.warn(
                    "disk.waiting", path=str(place), needed_mib=-(-needed // _MIB), free_mib=free // _MIB
                )
            return False

        if ready():
            return
        if not self.patient:
            raise self._on_failure(order) from failure
        self._session.wait("disk_full", ready)

    def _on_failure(self, order: _SaveRequest) -> TraindeckError:
        infos = checkpoint_dir.list_infos(self._run.checkpoints)
        return TraindeckError(
            "disk.unsaved",
            path=str(self._run.checkpoints),
            step=order.content.step,
            saved=max((info.step for info in infos), default=0),
            needed_mib=-(-order.content.disk_bytes // _MIB),
            free_mib=files.free_bytes(self._run.checkpoints) // _MIB,
        )


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
        return CheckpointContent(content.step, copies, content.documents)

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
