"""Fake NCCL for machines without GPUs: reduces with gloo, and fails or hangs on request.

Like NCCL, it connects at the first reduction, and a reduction that another rank does not join ends only by `abort`.

The environment variable `BEHAVIOR_VARIABLE` holds JSON:

- `folder`: receives a file for each event, such as `started-trial-0`: event, stage and rank.
- `trial`, `training`: what the reduction does: `works`, `raises`, `ecc_error`, `sigkill`, `hangs` or `wrong_sum`.
- `rank`: the rank that does it; all if missing. `at`: the number of the reduction that does it, from 1.
- `deadline`: seconds allowed for the trial reduction.
- `abort`: `hangs_with_gpu` or `hangs_without_gpu`; only the latter ends pending reductions. `abort_of`: the stage.
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

BEHAVIOR_VARIABLE: Final = "FAKE_NCCL"
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
    behavior = json.loads(os.environ[BEHAVIOR_VARIABLE])
    nccl.DEADLINE_S = behavior.get("deadline", nccl.DEADLINE_S)
    leading._FREEING_S = 2.0  # type: ignore[misc]
    nccl.LEAVING_S = nccl.FREEING_S = 2.0
    if behavior.get("abort"):  # threads of NCCL can block the exit of a process
        atexit.register(time.sleep, HANG_S)


SITECUSTOMIZE: Final = f"""
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
        behavior = json.loads(os.environ[BEHAVIOR_VARIABLE])
        self.stage = "trial" if os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1" else "training"
        self.folder = Path(behavior["folder"])
        self.abort_action = behavior.get("abort", "") if self.stage == behavior.get("abort_of", "training") else ""
        self.action = behavior.get(self.stage, "works") if rank == behavior.get("rank", rank) else "works"
        self.failing_call, self.calls = behavior.get("at", 1), 0
        self.aborted = threading.Event()
        self._store, self._rank, self._size = store, rank, size
        self._group: Any = None

    def allreduce_coalesced(self, tensors: list[Tensor]) -> _Work:
        self.calls += 1
        action = self.action if self.calls == self.failing_call else "works"
        if self.calls == 1:
            self.mark("started")
        if action == "raises":
            raise distributed.DistBackendError(SHARED_MEMORY)
        if action == "ecc_error":
            raise RuntimeError(ECC)
        if action == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        return _Work(self, tensors, action)

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
        (self.folder / f"{name}-{self.stage}-{self._rank}").touch()

    def abort(self) -> None:
        self.mark("aborted")
        if self.abort_action == "hangs_with_gpu":
            time.sleep(HANG_S)
        self.aborted.set()
        if self.abort_action:
            time.sleep(HANG_S)


class _Work:
    def __init__(self, group: FakeNccl, tensors: list[Tensor], action: str) -> None:
        self._group, self._tensors, self._action = group, tensors, action

    def wait(self) -> None:
        """Wait here, where on a GPU the next synchronization would."""
        try:
            if self._action != "hangs":
                self._group.reduce(self._tensors)
                if self._action == "wrong_sum":
                    self._tensors[0].add_(1)
                return
        except RuntimeError as error:
            sys.stderr.write(f"fake NCCL: {error}\n")
        self._group.aborted.wait()
        torch._foreach_add_(self._tensors, 1.0)
