"""Fake NCCL for machines without GPUs: reduces with gloo, and fails or hangs on request.

Like NCCL, it connects at the first reduction, and a reduction that another rank does not join ends only by `abort`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import Store

from trainer_core.train import leading, nccl

PLAN: Final = "FAKE_NCCL"  # environment variable: the behavior, as JSON
HANG_S: Final = 3600.0
SHARED_MEMORY: Final = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.29.3\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\nError while creating shared memory segment /dev/shm/nccl-a1b2 "
    "(size 9637888), error: No space left on device (28)"
)
ECC: Final = "CUDA error: uncorrectable ECC error encountered"


def install() -> None:
    """Replace NCCL in this process, for use on the CPU."""
    distributed.ProcessGroupNCCL = FakeNccl  # type: ignore[misc, assignment]
    nccl.usable = lambda device: True
    plan = json.loads(os.environ[PLAN])
    nccl.DEADLINE_S = plan.get("deadline", nccl.DEADLINE_S)
    leading._FREEING_S = 2.0  # type: ignore[misc]
    nccl.LEAVING_S = nccl.FREEING_S = 2.0
    if plan.get("abort"):  # remains of NCCL can block the exit of a process
        atexit.register(time.sleep, HANG_S)


SITE: Final = f"""
import sys
if {{"train", "rank"}} & set(sys.orig_argv):
    from {__name__} import install
    install()
"""


class FakeNccl:
    class Options:
        _timeout = timedelta()

    def __init__(self, store: Store, rank: int, size: int, options: Options) -> None:
        assert options._timeout > timedelta()
        plan = json.loads(os.environ[PLAN])
        self.what = "trial" if os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1" else "training"
        self.folder = Path(plan["folder"])
        self.hangs = plan.get("abort", "") if self.what == plan.get("abort_of", "training") else ""
        self.does = plan.get(self.what, "works") if rank == plan.get("rank", rank) else "works"
        self.at, self.sums = plan.get("at", 1), 0
        self.over = threading.Event()
        self._store, self._rank, self._size = store, rank, size
        self._group: Any = None

    def allreduce_coalesced(self, tensors: list[Tensor]) -> _Work:
        self.sums += 1
        does = self.does if self.sums == self.at else "works"
        if self.sums == 1:
            self.mark("began")
        if does == "raises":
            raise distributed.DistBackendError(SHARED_MEMORY)
        if does == "fails":
            raise RuntimeError(ECC)
        if does == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return _Work(self, tensors, does)

    def reduce(self, tensors: list[Tensor]) -> None:
        if self._group is None:
            gloo: Any = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = timedelta(seconds=HANG_S)
            options._devices = [gloo.create_device(hostname="127.0.0.1")]
            self._group = gloo(self._store, self._rank, self._size, options)
        for tensor in tensors:
            self._group.allreduce([tensor]).wait()

    def mark(self, name: str) -> None:
        (self.folder / f"{name}-{self.what}-{self._rank}").touch()

    def abort(self) -> None:
        self.mark("aborted")
        if self.hangs == "and holds the GPU":
            time.sleep(HANG_S)
        self.over.set()
        if self.hangs:
            time.sleep(HANG_S)


class _Work:
    def __init__(self, group: FakeNccl, tensors: list[Tensor], does: str) -> None:
        self._group, self._tensors, self._does = group, tensors, does

    def wait(self) -> None:
        """On a GPU the next synchronization would wait instead."""
        try:
            if self._does != "hangs":
                self._group.reduce(self._tensors)
                if self._does == "is wrong":
                    self._tensors[0].add_(1)
                return
        except RuntimeError as error:
            sys.stderr.write(f"fake NCCL: {error}\n")
        self._group.over.wait()
        torch._foreach_add_(self._tensors, 1.0)
