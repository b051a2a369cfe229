"""A rank other than 0: it does what rank 0 tells it to, and says nothing but to its log."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from trainer_core import error_codes
from trainer_core.config import Config
from trainer_core.data import synthetic_data
from trainer_core.data.prepare import PreparedData, prepare
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.rank_info import RankInfo
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import nccl, rendezvous
from trainer_core.train.device import Precision, configure_arithmetic, device_of_rank
from trainer_core.train.evaluate import EvaluationPass
from trainer_core.train.joined import Joined
from trainer_core.train.leading import log_of
from trainer_core.train.peak_memory import PeakMemory
from trainer_core.train.ranks import EndedByLeader, RankLost
from trainer_core.train.training_step import TrainingStep
from trainer_core.wire import EventDispatcher

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")  # heard by rank 0, which tells us


def of_folder(folder: Path, place: RankInfo, leader: int) -> int:
    """A rank that rank 0 (the process `leader`) has started. Returns the exit code."""

    def look() -> None:
        if os.name != "nt" and os.getppid() != leader:  # on Windows a job object ends us
            raise RankLost("rank 0 has gone")

    return _follow(lambda: rendezvous.FolderStore(folder), place, look)


def of_launcher(place: RankInfo) -> int:
    """A rank that `torchrun` has started. Returns the exit code."""
    sys.stdout.flush()
    os.dup2(2, 1)  # stdout is rank 0's
    return _follow(lambda: rendezvous.store_of_launcher(place.rank, place.size), place, lambda: None)


def _follow(store_of: Callable[[], Store], place: RankInfo, look: Callable[[], None]) -> int:
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    faulthandler.enable()
    store = ranks = None
    code: int = ExitCode.FINISHED
    try:
        store = store_of()
        store.set(f"here/{place.rank}", "1")
        rendezvous.wait_for(store, ["go"], look)
        ranks = Joined(store, place.rank, place.size)
        _train(ranks)
    except EndedByLeader as end:
        code = end.code
    except RankLost as error:
        ended = rendezvous.read_if_there(store, "ended") if store is not None else None
        if ended is None:
            sys.stderr.write(f"rank {place.rank}: {error}\n")
        code = int(ended) if ended else ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - rank 0 tells it
        traceback.print_exc()
        told = _named(error)
        if store is not None:
            with contextlib.suppress(RuntimeError, OSError):
                store.set(
                    f"failed/{place.rank}",
                    json.dumps({"code": told.code, "detail": told.detail, "params": told.params}),
                )
        code = told.exit_code
    if ranks is not None and not ranks.close():
        nccl.leave_without_waiting(code)
    return code


def _named(error: Exception) -> TraindeckError:
    if isinstance(error, TraindeckError):
        return error
    text, found = f"{type(error).__name__}: {error}", error_codes.classify_exception(error)
    if found is not None:
        return TraindeckError(found.code, text, **found.params)
    return TraindeckError("internal", text, kind=type(error).__name__, log="rank-N.log")


def _train(ranks: Joined) -> None:
    ranks.most(0)  # that words get through is seen before anything depends on it
    order = ranks.hear()
    run, config = RunDir(Path(order["run"])), Config(**order["config"])
    with log_of(run, ranks.rank).open("ab") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    device = device_of_rank(torch.device(order["device"]), ranks.rank, ranks.size)
    configure_arithmetic(config, device)
    taken = PeakMemory(device)
    ranks.use_gpus(device)
    prepared = _prepared(order["data"], config, ranks.rank)
    precision = Precision.from_name(order["precision"], device)
    source = Path(order["source"]) if order["source"] else None
    trainer = TrainingStep(config, prepared, run, RunContext(EventDispatcher()), device, precision, ranks, source)
    if source is not None:
        trainer.resume(source)
    trainer.set_up()
    obey(trainer, ranks, taken)


def _prepared(data: dict[str, Any], config: Config, rank: int) -> PreparedData:
    """What rank 0 has prepared, or such a cache as it has made up for a check."""
    if "made_up" in data:
        return synthetic_data.build_synthetic_cache(Path(data["made_up"]) / f"cache-{rank}", config, **data["shape"])
    prepared = prepare(config, NullReporter())
    if prepared.fingerprint != data["prepared"]:
        raise TraindeckError("data.changed", f"{data['prepared']} → {prepared.fingerprint}")
    return prepared


def obey(trainer: TrainingStep, ranks: Joined, taken: PeakMemory) -> None:
    """Do what rank 0 says until it says that it is over: raises `EndedByLeader`, and `RankLost` where it has gone."""
    try:
        with trainer.garbage.disabled(), trainer.offloading() as away:
            _obey(trainer, ranks, taken, away)
    finally:
        trainer.close()


def _obey(
    trainer: TrainingStep, ranks: Joined, taken: PeakMemory, away: Callable[[], AbstractContextManager[None]]
) -> None:
    evaluating: EvaluationPass | None = None
    while True:
        order = ranks.hear()
        match order["do"]:
            case "step":
                trainer.step()
                trainer.garbage.collect_if_due()
            case "back":
                trainer.load(trainer.run_dir.checkpoints / order["folder"], order["position"])
            case "evaluate":
                evaluating = evaluating or trainer.evaluation_pass()
                evaluating.evaluate_next()
            case "evaluated" if evaluating is not None:
                trainer.plateau.observe(evaluating.result().loss)
                evaluating = None
            case "pause":
                with away():
                    ranks.hear()  # that it goes on
                ranks.most(0)
            case "peaks":
                ranks.most(taken.gpu_bytes(), taken.host_bytes())
            case _:
                raise ValueError(order)
