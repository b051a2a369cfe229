"""Starts the ranks of this machine: `python -m trainer_core.elastic_agent PARENT RANKS MODULE ARGUMENTS...`.

Uses the elastic agent of `torchrun`, which kills the other ranks when one fails. A termination request is passed on to
the ranks, of which rank 0 stops the run; restarts are left to `supervisor.py`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from types import FrameType
from typing import Final

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainer_core.rank_info import OWN_RUN_ID
from trainer_core.supervisor import exit_like_child
from trainer_core.system import child_process

_ENDING_S: Final = 600  # in which ranks end, for example after writing a checkpoint, when another one has failed


def main() -> int:
    parent, ranks, module, *arguments = sys.argv[1:]
    child_process.exit_with_parent(int(parent), graceful=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor passes it on
    signal.signal(signal.SIGTERM, _terminate_ranks)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # rank 0 reports failures
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        run_id=OWN_RUN_ID,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
        signals_to_handle="SIGUSR2",
        shutdown_timeout=_ENDING_S,
    )
    flags = child_process.interpreter_flags()
    try:
        elastic_launch(config, sys.executable)(*flags, "-P", "-m", module, *arguments)
    except ChildFailedError as error:
        return _cause(error.failures)
    return 0


def _cause(failures: dict[int, ProcessFailure]) -> int:
    """Exit code of a rank that a signal ended, else of rank 0, else of the first that failed."""
    codes = [failure.exitcode for _, failure in sorted(failures.items())]
    first = min(failures.values(), key=lambda failure: failure.timestamp)
    return next((code for code in codes if code < 0), failures.get(0, first).exitcode)


def _terminate_ranks(number: int, frame: FrameType | None) -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            child.terminate()


if __name__ == "__main__":
    exit_like_child(main())
