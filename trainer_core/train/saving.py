"""Checkpoints written beside training (`background_saving`): it stands only while its state is copied.

At most one write is under way. What it fails of is raised in the training thread, at the next step boundary or
where the write is waited for; a full disk is waited out.
"""

from __future__ import annotations

import math
import time
from concurrent import futures
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer_core import files
from trainer_core.config import Config
from trainer_core.machine.ram import system_memory
from trainer_core.messages import TraindeckError
from trainer_core.protocol import CheckpointKind
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.session import Session
from trainer_core.train import transaction
from trainer_core.train.timing import StepClock
from trainer_core.train.transaction import Content, Keep

_SPARED: Final = 0.1  # of the machine's memory, which copies leave free
_BEAT_S: Final = 0.2  # a signal is heard so often while a write is waited for
_AGAIN_S: Final = 10.0  # a write that found the disk full is tried again then, also where nothing seems to change
_REMIND_S: Final = 300.0
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Order:
    content: Content
    kind: CheckpointKind
    eval_loss: float | None
    keep: Keep


class Saver:
    """Writes one checkpoint at a time, where there is memory for a copy in a thread.

    `patient` off: it waits for no space, because the run is ending.
    """

    def __init__(self, config: Config, run: RunDir, session: Session, device: torch.device, clock: StepClock) -> None:
        self._config, self._run, self._session, self._clock = config, run, session, clock
        self._copies = Copies(pinned=device.type == "cuda" and config.pin_memory)
        # Its thread begins now: where memory has ended, Python may wait for ever for one that is to begin.
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._written: futures.Future[object] = self._thread.submit(bool)
        self._order: _Order | None = None  # not known to be on disk yet
        self._failure: Exception | None = None  # of that
        self.saved: tuple[int, float | None] = (-1, None)  # step and held-out loss of the newest one, or that under way
        self.patient = True
        self._reminded = -math.inf  # when a full disk was said last; also of several tries

    def save(self, content: Content, kind: CheckpointKind, eval_loss: float | None, keep_step: int) -> None:
        """Begin to write. Raises what the write before failed of, `StopRequested` when that is asked for while the
        disk is full, and `disk.unsaved` where there is no time to wait for space."""
        if self.patient:
            self.wait()
        else:
            self.join()
            self._order = self._failure = None  # whatever became of it: this one is newer
        order = _Order(content, kind, eval_loss, Keep(self._config.keep_last, self._config.keep_best, keep_step))
        self._wait_for_space(order)
        self.saved = (content.step, eval_loss)
        with self._clock.saving():
            copy = self._copy(content)
            if copy is not None:
                self._begin(_Order(copy, kind, eval_loss, order.keep))
                return
            self._order = order
            self._write(order)
        self.wait()

    def look(self) -> None:
        """Find out how the write went, if it is over. Raises as `save` does."""
        while self._order is not None and not self._busy():
            order, failure = self._order, self._failure
            if isinstance(failure, TraindeckError) and failure.code == "disk.full":
                self._wait_for_space(order, failure)
                self._begin(order)
                continue
            self._order = self._failure = None
            self._reminded = -math.inf
            if failure is not None:
                self.saved = (-1, None)
                if not (self.patient and order.kind in ("regular", "best") and _is_held(failure)):
                    raise failure
                self._say_not_saved(order, failure)  # the next one finds it free, or says so too

    def join(self) -> None:
        """Let the write under way end, however it does."""
        if self._busy():
            with self._clock.saving():
                while self._busy():
                    futures.wait([self._written], _BEAT_S)

    def wait(self) -> None:
        """Until everything is on disk. Raises as `save` does."""
        while self._order is not None:
            self.join()
            self.look()

    def close(self) -> None:
        """Let the write under way end. The run does too, so its failure is only said."""
        self.join()
        if self._order is not None and self._failure is not None:
            self._say_not_saved(self._order, self._failure)
        self._order = self._failure = None
        self._copies.forget()
        self._thread.shutdown()

    def _say_not_saved(self, order: _Order, failure: Exception) -> None:
        reason = str(failure).partition("\n")[0]
        self._session.warn("checkpoint.not_saved", step=order.content.step, reason=reason)

    def _busy(self) -> bool:
        return not self._written.done()

    def _begin(self, order: _Order) -> None:
        self._order, self._failure = order, None
        self._written = self._thread.submit(self._write, order)

    def _write(self, order: _Order) -> None:
        try:
            self._copies.arrived()
            self._session.emit(transaction.write(self._run, order.content, order.kind, order.eval_loss, order.keep))
        except Exception as error:  # noqa: BLE001 - the training thread gets it
            self._failure = error

    def _copy(self, content: Content) -> Content | None:
        """None: there is no memory for it, or training is to wait for the write."""
        total, available = system_memory()
        if self._config.low_memory or not self._config.background_saving:
            return None
        if self._copies.missing(content) > available - _SPARED * total:
            return None
        try:
            return self._copies.of(content)
        except (MemoryError, RuntimeError):  # a limit that is not the machine's
            self._copies.forget()
            return None

    # --- a full disk ---------------------------------------------------------------------------------

    def _wait_for_space(self, order: _Order, failure: TraindeckError | None = None) -> None:
        """Until there is room for `order`; after a `failure` also until something has changed, or some seconds are
        over: a quota is not seen from outside."""
        needed, place = order.content.disk_bytes, self._run.checkpoints
        begun, free_then = time.monotonic(), files.free_bytes(place)

        def ready() -> bool:
            now, free = time.monotonic(), files.free_bytes(place)
            if free >= needed and (failure is None or free > free_then or now - begun > _AGAIN_S):
                return True
            if now - self._reminded >= _REMIND_S and self.patient:
                self._reminded = now
                self._session.warn(
                    "disk.waiting", path=str(place), needed_mib=-(-needed // _MIB), free_mib=free // _MIB
                )
            return False

        if ready():
            return
        if not self.patient:
            raise self._unsaved(order) from failure
        self._session.wait("disk_full", ready)

    def _unsaved(self, order: _Order) -> TraindeckError:
        infos = checkpoint_dir.infos_of(self._run.checkpoints)
        return TraindeckError(
            "disk.unsaved",
            path=str(self._run.checkpoints),
            step=order.content.step,
            saved=max((info.step for info in infos), default=0),
            needed_mib=-(-order.content.disk_bytes // _MIB),
            free_mib=files.free_bytes(self._run.checkpoints) // _MIB,
        )


class Copies:
    """Host memory for one copy of all tensors, kept from save to save. `pinned`: page-locked, which a GPU fills at
    once and beside its work."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._kept: dict[tuple[str, str], Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def missing(self, content: Content) -> int:
        """Bytes of memory that a copy takes beside what is kept."""
        spare = 2 if self._pinned else 1  # page-locked memory is given in powers of two
        return spare * sum(
            tensor.nbytes
            for file, tensors in content.tensors.items()
            for name, tensor in tensors.items()
            if not _fits(self._kept.get((file, name)), tensor)
        )

    def of(self, content: Content) -> Content:
        """The same with copies of the tensors, as they are at this point of the current stream."""
        copies = {
            file: {name: self._copy((file, name), tensor) for name, tensor in tensors.items()}
            for file, tensors in content.tensors.items()
        }
        if any(tensor.is_cuda for tensors in content.tensors.values() for tensor in tensors.values()):
            self._copied = torch.cuda.current_stream().record_event()
        return Content(content.step, copies, content.documents)

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        kept = self._kept.get(key)
        if kept is None or not _fits(kept, tensor):
            kept = self._kept[key] = self._new(tensor)
        return kept.copy_(tensor, non_blocking=True)

    def _new(self, tensor: Tensor) -> Tensor:
        if self._pinned and tensor.is_cuda:
            try:
                return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            except RuntimeError:  # the system locks no more pages
                self._pinned = False
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def arrived(self) -> None:
        """Wait until a GPU has filled the copies."""
        if self._copied is not None:
            self._copied.synchronize()

    def forget(self) -> None:
        """Give the memory back."""
        self._kept.clear()


def _fits(kept: Tensor | None, tensor: Tensor) -> bool:
    return kept is not None and kept.shape == tensor.shape and kept.dtype == tensor.dtype


def _is_held(failure: Exception) -> bool:
    """Whether another program holds a file open, for longer than it was tried again."""
    return isinstance(failure.__cause__, OSError) and files.is_shared(failure.__cause__)
