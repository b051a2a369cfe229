"""NCCL adds up gradients of several GPUs. It can fail in any way, and wait for ever: so it is tried before anything
depends on it, and nobody waits long for it to let go."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, distributed
from torch.distributed import Store  # type: ignore[attr-defined]

DEADLINE_S = 60.0  # for the first sum; NCCL has then found out which ways there are between the GPUs
LEAVING_S = 5.0  # for breaking off what is under way, when all is over
FREEING_S = 30.0  # for the same, where the run depends on it

_PATIENCE: Final = datetime.timedelta(minutes=10)  # then its own watchdog ends the process
_NO_WATCHDOG: Final = "TORCH_NCCL_BLOCKING_WAIT"
_LAST_ERROR: Final = "Last error:"
_MOST_CHARACTERS: Final = 300

_log = logging.getLogger(__name__)


def usable(device: torch.device) -> bool:
    """Whether there is NCCL for it: on Linux."""
    return device.type == "cuda" and distributed.is_nccl_available()


class Nccl:
    """Ranks whose tensors on GPUs can be added up. They connect with the first sum. Raises `RuntimeError`."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = _PATIENCE
        self.device = device
        self._group: Any = distributed.ProcessGroupNCCL(store, rank, size, options)
        # Its destructor waits for threads that may wait for a GPU, or sleep for a minute and then end the process: it
        # never runs. `let_go` gives back what the group has of the GPU.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
        self._leaving: threading.Thread | None = None
        self._turn = threading.Lock()

    def add_up(self, tensors: Sequence[Tensor]) -> Any:
        """Begin to make each tensor the sum of it on all ranks. The result is waited for with `wait`."""
        return self._group.allreduce_coalesced(list(tensors))

    def let_go(self, within_s: float | None = None) -> bool:
        """Break off what is under way, here and on the GPU; whether that was done soon enough (within `LEAVING_S`, or
        `within_s`). What was being added up is not whole then. From any thread, and as often as one likes."""
        with self._turn:
            if self._leaving is None:
                self._leaving = threading.Thread(target=self._abort, name="nccl-abort", daemon=True)
                self._leaving.start()
        self._leaving.join(LEAVING_S if within_s is None else within_s)
        return not self._leaving.is_alive()

    def _abort(self) -> None:
        try:
            self._group.abort()  # NVIDIA/nccl#1777: may never return
        except RuntimeError as error:
            _log.warning("NCCL could not be ended: %s", error)


class Trial:
    """One sum of all ranks, of which nobody knows whether it ends."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        self.problem = ""  # why it failed, once it is over
        self.over = threading.Event()
        self._size, self._device = size, device
        self._nccl: Nccl | None = None
        self._thread = threading.Thread(target=self._run, name="nccl-trial", daemon=True)
        try:
            with _without_watchdog():
                self._nccl = Nccl(store, rank, size, device)
            self._thread.start()
        except Exception as error:  # noqa: BLE001 - it can fail in any way
            self._failed(error)

    def _run(self) -> None:
        assert self._nccl is not None
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # threads begin with the first one
            one = torch.ones(1, device=self._device)
            self._nccl.add_up([one]).wait()
            if (found := float(one)) != self._size:
                raise RuntimeError(f"{self._size} ranks added up 1 to {found:g}")
        except RuntimeError as error:
            self._failed(error)
        self.over.set()

    def _failed(self, error: Exception) -> None:
        _log.warning("NCCL cannot be used", exc_info=error)
        self.problem = in_short(error)
        self.over.set()

    def let_go(self, within_s: float | None = None) -> bool:
        """Free what it has of the GPU; whether that was done soon enough. See `Nccl.let_go`."""
        return self._nccl is None or self._nccl.let_go(within_s)

    @property
    def left(self) -> bool:
        """Whether a thread of ours is still in NCCL."""
        return self._thread.is_alive()


@contextlib.contextmanager
def _without_watchdog() -> Iterator[None]:
    """A group that is made in here has no threads of its own. They would end this process, some minutes after a trial
    that failed, although it goes on without NCCL; and a sum's `wait` waits until it is done."""
    before = os.environ.get(_NO_WATCHDOG)
    os.environ[_NO_WATCHDOG] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_WATCHDOG]
        else:
            os.environ[_NO_WATCHDOG] = before


def in_short(error: Exception) -> str:
    """What NCCL says last, without the places in its sources."""
    text = str(error).strip()
    head, _, last = text.rpartition(_LAST_ERROR)
    words = " ".join(last.split()) if head and last.strip() else text.partition("\n")[0]
    return (words or type(error).__name__)[:_MOST_CHARACTERS]


def leave_without_waiting(code: int) -> None:
    """When Python has come to its end, end the process with `code`: what is left of NCCL in it could wait for ever."""
    atexit.register(_leave, code)


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
