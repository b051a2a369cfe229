"""One of several ranks (see `ranks.py`).

What is said between ranks goes over gloo on the loopback interface and never waits for a GPU. Gradients of GPUs go over
NCCL where it is there (Linux) and works, else through system memory and gloo.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

import msgspec
import torch
from torch import Tensor, distributed
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from trainer_core import error_codes
from trainer_core.data.loader import Batch
from trainer_core.data.order import keyed_hash
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.train import nccl
from trainer_core.train.nccl import Nccl, Trial
from trainer_core.train.ranks import EndedByLeader, RankLost, Ranks, deal
from trainer_core.train.rendezvous import FolderStore, read_if_there

_FOREVER: Final = datetime.timedelta(days=365)  # rank 0 may be paused; a rank that has gone is known at once anyway
_HEAD: Final = 256  # bytes in which an order mostly fits
_LENGTH: Final = 8  # of them say how long it is
_BUCKET_BYTES: Final = 32 * 2**20  # of gradients that are added up at once
_POLL_S: Final = 0.02
_NO_NCCL: Final = "no-nccl"  # why, from the first rank on which it failed


class Joined(Ranks):
    """One of several ranks."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.apart = False  # the others do not wait for an order, and will not take one
        self._store = store
        gloo: Any = distributed.ProcessGroupGloo  # its stub lacks what it does
        options = gloo._Options()
        options._timeout = _FOREVER
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        with self._together():
            self._group = gloo(PrefixStore("gloo", store), rank, size, options)
        self._nccl: Nccl | None = None
        self._trial: Trial | None = None  # of NCCL, until nothing of it is left
        self._buffers: list[Tensor] = []  # in system memory, page-locked beside a GPU
        self._on_device: Tensor | None = None

    # --- NCCL ----------------------------------------------------------------------------------------

    @property
    def has_nccl(self) -> bool:
        """Whether gradients go over it."""
        return self._nccl is not None

    def use_gpus(self, device: torch.device, poll: Callable[[], None] = lambda: None) -> str:
        """Have NCCL add up gradients where it is there and a first sum succeeds on all ranks; rank 0 polls meanwhile.
        After the device of this process is set.

        Returns why it is not used although it is there. Raises `ranks.nccl_stuck` where a sum that failed cannot be
        broken off.
        """
        if not nccl.usable(device):
            return ""
        self.most(0, poll=poll)  # all are there: what takes time from now on is NCCL
        store = self._store
        if isinstance(store, FolderStore):  # NCCL's threads may ask a store at any time: it must be none in Python
            store = FileStore(str(store.folder / "nccl"), self.size)
        self._trial = Trial(PrefixStore("nccl-trial", store), self.rank, self.size, device)
        problem = self._outcome(self._trial, poll)
        if problem and not self._store.check([_NO_NCCL]):
            self._store.set(_NO_NCCL, problem)
        (failed,) = self.most(int(bool(problem)), poll=poll)
        gone = self._trial.let_go(nccl.FREEING_S if failed else None)
        (stuck,) = self.most(int(not gone), poll=poll)
        if failed and stuck:  # the GPU may wait for it with all that comes after
            raise TraindeckError("ranks.nccl_stuck", detail=self._why_no_nccl())
        if gone and not self._trial.left:
            self._trial = None
        if failed:
            return self._why_no_nccl()
        self._nccl = Nccl(PrefixStore("nccl", store), self.rank, self.size, device)
        self.add_up([torch.ones(1, device=device)])  # connects now, before torch has taken the memory for it
        return ""

    def _outcome(self, trial: Trial, poll: Callable[[], None]) -> str:
        """What is wrong with NCCL on this rank; empty too where another one has said so first."""
        self.apart = True
        end = time.monotonic() + nccl.DEADLINE_S
        while not trial.over.wait(_POLL_S):
            poll()
            if self._store.check([_NO_NCCL]):
                return ""
            if time.monotonic() > end:
                return f"no answer within {nccl.DEADLINE_S:.0f} s"
        return trial.problem

    def _why_no_nccl(self) -> str:
        return (read_if_there(self._store, _NO_NCCL) or b"?").decode("utf-8", "replace")

    def abort_nccl(self) -> None:
        """Break off a sum that another rank will not take part in, so that nobody waits for it. From any thread."""
        if self._nccl is not None:
            self._nccl.let_go()

    # --- words ---------------------------------------------------------------------------------------

    def tell(self, do: str, **about: Any) -> None:
        content = json.dumps({"do": do, **about}).encode("utf-8")
        head = len(content).to_bytes(_LENGTH, "little") + content[: _HEAD - _LENGTH]
        self._broadcast(torch.frombuffer(bytearray(head.ljust(_HEAD, b"\0")), dtype=torch.uint8))
        if rest := content[_HEAD - _LENGTH :]:
            self._broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8))

    def hear(self) -> dict[str, Any]:
        """What rank 0 says is to be done now, under `do`. Raises `EndedByLeader`, `RankLost`."""
        head = bytes(self._broadcast(torch.empty(_HEAD, dtype=torch.uint8)).tolist())
        length, content = int.from_bytes(head[:_LENGTH], "little"), head[_LENGTH:]
        if length > len(content):
            rest = torch.empty(length - len(content), dtype=torch.uint8)
            content += bytes(self._broadcast(rest).tolist())
        order: dict[str, Any] = json.loads(content[:length])
        if order["do"] == "end":
            raise EndedByLeader(order["code"])
        return order

    def _broadcast(self, content: Tensor) -> Tensor:
        with self._together():
            self._group.broadcast([content], _from_leader()).wait()
        return content

    def same(self, make: Callable[[Any], Any], chosen: Callable[[Any], Any], before: Any) -> Any:
        if self.rank:
            order = self.hear()
            if order["do"] != "choose":
                raise MemoryError("on rank 0")
            return make(order["chosen"])
        try:
            made = make(before)
        except StopRequested:
            raise
        except Exception:
            self.tell("leave")
            raise
        self.tell("choose", chosen=chosen(made))
        return made

    def most(self, *values: int, poll: Callable[[], None] | None = None) -> list[int]:
        together, options = torch.tensor(values, dtype=torch.int64), distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MAX  # type: ignore[assignment]
        with self._together():
            work = self._group.allreduce([together], options)
            while poll is not None and self.rank == 0 and not work.is_completed():
                self._ask(poll)
                time.sleep(_POLL_S)
            work.wait()
        self.apart = False
        return [int(value) for value in together.tolist()]

    def _ask(self, poll: Callable[[], None]) -> None:
        """`poll`, while the others have not answered yet."""
        self.apart = True
        try:
            poll()
        except BaseException:
            # The group's destructor waits for their answers, which may never come; the end of the process does not.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            raise

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Around what fails only because another rank has gone."""
        try:
            yield
        except RuntimeError as error:
            self._lost(error)

    def _lost(self, error: RuntimeError) -> NoReturn:
        self.apart = True
        if self._nccl is None:
            raise RankLost(str(error)) from error
        self._nccl.let_go()
        # A `TraindeckError`: nothing is saved after it. What was added up last may not be whole, and may be in use.
        found = error_codes.classify_exception(error)
        if found is None or found.code == "failure.peer_lost":
            raise TraindeckError("failure.peer_lost", detail=str(error)) from error
        raise TraindeckError(found.code, f"{type(error).__name__}: {error}", **found.params) from error

    def lost(self, why: str) -> NoReturn:
        """Another rank has gone, which was seen elsewhere."""
        self._lost(RankLost(why))

    # --- gradients -----------------------------------------------------------------------------------

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        if self._nccl is not None and tensors[0].device.type == self._nccl.device.type:
            with self._together():
                self._nccl.add_up(tensors).wait()
            return
        before: _Sum | None = None
        for number, pieces in enumerate(_buckets(tensors)):
            flat = self._gathered(pieces, number % 2)
            with self._together():
                work = self._group.allreduce([flat])
            if before is not None:
                self._scatter(before)
            before = _Sum(pieces, flat, work)
        if before is not None:
            self._scatter(before)

    def add_up_gradients(self, weights: Iterable[Tensor], loss: Tensor) -> None:
        gradients = []
        for weight in weights:
            if weight.grad is None:  # this rank has no part in this step
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        self.add_up(gradients)
        self.add_up([loss])

    def reserve(self, tensors: Sequence[Tensor]) -> None:
        if self._nccl is not None:
            return
        size = min(sum(tensor.nbytes for tensor in tensors), _BUCKET_BYTES)
        if not self._buffers or self._buffers[0].nbytes < size:
            on_gpu = tensors[0].is_cuda
            self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
            self._on_device = torch.empty(size, dtype=torch.uint8, device=tensors[0].device) if on_gpu else None

    def _gathered(self, pieces: list[Tensor], which: int) -> Tensor:
        """The pieces one behind the other, in system memory."""
        self.reserve(pieces)
        count, like = sum(piece.numel() for piece in pieces), pieces[0]
        flat = self._buffers[which][: count * like.itemsize].view(like.dtype)
        if self._on_device is None:
            return torch.cat(pieces, out=flat)
        there = self._on_device[: count * like.itemsize].view(like.dtype)
        return flat.copy_(torch.cat(pieces, out=there))

    def _scatter(self, total: _Sum) -> None:
        with self._together():
            total.work.wait()
        flat = total.flat
        if self._on_device is not None:
            flat = self._on_device[: flat.nbytes].view(flat.dtype).copy_(flat, non_blocking=True)
        torch._foreach_copy_(total.pieces, list(torch.split(flat, [piece.numel() for piece in total.pieces])))

    # --- the same step, divided ------------------------------------------------------------------------

    def seed(self, seed: int, step: int) -> None:
        torch.manual_seed(keyed_hash(f"rank/{seed}/{self.rank}", step))

    def share(self, window: list[Batch], most: int) -> list[Batch]:
        return deal(window, self.rank, self.size, most)

    def end(self, code: int) -> bool:
        """Rank 0: tell the others that it is over, if they listen; whether they do."""
        if not self.apart:
            with contextlib.suppress(RankLost, TraindeckError):
                self.tell("end", code=int(code))
        return not self.apart

    def close(self) -> bool:
        """Let go of the others, before this process ends: threads that still hear from them then would abort it.
        Whether nothing is left that could keep it from ending."""
        self._group = None
        gone = [part.let_go() for part in (self._nccl, self._trial) if part is not None]
        return all(gone) and (self._trial is None or not self._trial.left)


class _Sum(msgspec.Struct):
    """A bucket on its way."""

    pieces: list[Tensor]
    flat: Tensor
    work: Any


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Flat views of all tensors, large ones in pieces, in lists of at most `_BUCKET_BYTES`."""
    pieces: list[Tensor] = []
    room = whole = _BUCKET_BYTES // tensors[0].itemsize
    for tensor in tensors:
        rest = tensor.view(-1)
        while rest.numel():
            pieces.append(rest[:room])
            rest, room = rest[room:], room - pieces[-1].numel()
            if not room:
                yield pieces
                pieces, room = [], whole
    if pieces:
        yield pieces


def _from_leader() -> distributed.BroadcastOptions:
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    return options
