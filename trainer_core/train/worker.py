"""A rank other than 0: it trains with the data and settings that rank 0 has chosen, and only writes a log."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from trainer_core import error_codes
from trainer_core.config import Config
from trainer_core.data.prepare import prepare
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.rank_info import RankInfo, is_elastic
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.build import build_trainer, require_shared_folder
from trainer_core.train.device import Precision, configure_arithmetic, device_of_rank
from trainer_core.train.process_group import PeerFailed, ProcessGroup, join
from trainer_core.wire import EventDispatcher

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")  # rank 0 receives them, and stops all ranks


def train_worker(info: RankInfo) -> int:
    """Train until rank 0 ends. Returns the exit code."""

    def train() -> None:
        with join(info) as group:
            _train(info, group)

    return run_worker(train)


def run_worker(work: Callable[[], None]) -> int:
    """Run the work of a rank other than 0, which reports its failure. Returns the exit code."""
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is rank 0's
    faulthandler.enable()
    try:
        work()
    except PeerFailed as failed:
        return failed.exit_code
    except StopRequested:
        return ExitCode.FINISHED if is_elastic() else ExitCode.STOPPED
    except Exception as error:  # noqa: BLE001 - reported by rank 0
        traceback.print_exc()
        return error_codes.to_traindeck_error(error).exit_code
    return ExitCode.FINISHED


def _train(info: RankInfo, group: ProcessGroup) -> None:
    setup: dict[str, Any] = group.on_rank_zero(dict)
    run, config = RunDir(Path(setup["run"])), Config(**setup["config"])
    run.path.mkdir(parents=True, exist_ok=True)  # on another machine
    with log_path(run, info.rank).open("ab") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    sys.stderr.flush()
    source = Path(setup["source"]) if setup["source"] else None
    require_shared_folder(group, run, config, source)
    device = device_of_rank(torch.device(setup["device"]), info.local_rank, info.local_world_size)
    configure_arithmetic(config, device)
    prepared = prepare(config, NullReporter())
    if prepared.fingerprint != setup["prepared"]:
        raise TraindeckError("data.changed", f"{setup['prepared']} → {prepared.fingerprint}")
    precision = Precision.from_name(setup["precision"], device)
    context = RunContext(EventDispatcher())
    build_trainer(config, prepared, run, context, device, precision, group, source).run()


def log_path(run: RunDir, rank: int) -> Path:
    """The log of a rank other than 0."""
    return run.path / f"rank-{rank}.log"
