"""NCCL that fails or hangs, simulated by `fake_nccl` on machines without GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import distributed

from tests.core import trainer_process
from tests.core.rank_processes import is_running, join_ranks, start_ranks
from tests.core.trainer_process import (
    ROOT,
    TINY,
    TrainerResult,
    entered_phase,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from tests.core.training import tiny_config
from tests.faults.fake_nccl import BEHAVIOR_VARIABLE, ECC, SHARED_MEMORY, SITECUSTOMIZE, FakeNccl
from trainer_core import protocol
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import nccl
from trainer_core.train.joined import Joined
from trainer_core.train.leading import Others
from trainer_core.wire import EventDispatcher

SHORT_RUN = [
    "train", *TINY, "--max-steps", "6", "--dropout", "0", "--compile", "off", "--run-dir", "run", "--ranks", "2",
]  # fmt: skip
ENDLESS_RUN = [*SHORT_RUN, "--max-steps", "1000000", "--save-steps", "1000000"]
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no NCCL on Windows")


class NcclBehavior:
    """Sets the behavior of NCCL in the processes of a test."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self._home, self._patch = home, patch
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
        path = os.pathsep.join([str(home / "site"), str(ROOT)])
        environment = trainer_process.environment
        patch.setattr(trainer_process, "environment", lambda home: {**environment(home), "PYTHONPATH": path})

    def __call__(self, **behavior: object) -> None:
        self._patch.setenv(BEHAVIOR_VARIABLE, json.dumps({"folder": str(self._home), **behavior}))

    def marks(self, name: str) -> list[str]:
        return sorted(path.name for path in self._home.glob(f"{name}-*"))


@pytest.fixture
def nccl_behavior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclBehavior:
    return NcclBehavior(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def gloo_result(tmp_path_factory: pytest.TempPathFactory) -> TrainerResult:
    """Result of the same run without NCCL."""
    home = tmp_path_factory.mktemp("gloo")
    result = run(home, *SHORT_RUN, "--data", str(text_file(home)))
    assert result.code == 0, result.stderr
    return result


def saved_checkpoints(home: Path) -> list[tuple[int, str]]:
    checkpoints = []
    for folder in sorted((home / "run" / "checkpoints").glob("step-*")):
        info = checkpoint_dir.read_info(folder)
        assert info is not None
        checkpoints.append((info.step, info.kind))
    return checkpoints


# --- before the first step -----------------------------------------------------------------------------------


def test_gradients_use_nccl_if_the_trial_reduction_succeeds(
    tmp_path: Path, nccl_behavior: NcclBehavior, gloo_result: TrainerResult
) -> None:
    nccl_behavior()
    result = run(tmp_path, *SHORT_RUN, "--data", str(text_file(tmp_path)))
    assert result.code == 0, result.stderr
    assert not result.events_of(protocol.Warn)
    assert result.losses == pytest.approx(gloo_result.losses, rel=1e-6)
    assert nccl_behavior.marks("started") == [
        "started-training-0",
        "started-training-1",
        "started-trial-0",
        "started-trial-1",
    ]
    assert len(nccl_behavior.marks("aborted")) == 4, "aborting releases the GPUs"


@pytest.mark.parametrize(
    ("behavior", "reason"),
    [
        ({"trial": "raises"}, "/dev/shm/nccl-a1b2"),
        ({"trial": "raises", "rank": 0}, "/dev/shm/nccl-a1b2"),
        ({"trial": "raises", "rank": 1, "deadline": 600.0}, "/dev/shm/nccl-a1b2"),
        ({"trial": "wrong_sum", "rank": 1, "deadline": 600.0}, "2 ranks added up 1 to 3"),
        ({"trial": "hangs", "deadline": 2.0}, "no answer within 2 s"),
        ({"trial": "hangs", "rank": 1, "deadline": 2.0}, "no answer within 2 s"),
    ],
)
def test_all_ranks_fall_back_to_gloo_with_one_warning_if_nccl_fails(
    behavior: dict[str, object], reason: str, tmp_path: Path, nccl_behavior: NcclBehavior, gloo_result: TrainerResult
) -> None:
    nccl_behavior(**behavior)
    result = run(tmp_path, *SHORT_RUN, "--data", str(text_file(tmp_path)))
    assert result.code == 0, result.stderr
    (warning,) = result.events_of(protocol.Warn)
    assert warning.code == "ranks.no_nccl"
    assert reason in warning.params["reason"]
    assert result.losses == gloo_result.losses
    assert nccl_behavior.marks("aborted") == ["aborted-trial-0", "aborted-trial-1"]


def test_a_trial_reduction_that_cannot_be_aborted_ends_the_run(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    """Later GPU operations would hang."""
    nccl_behavior(trial="hangs", deadline=2.0, abort="hangs_with_gpu", abort_of="trial")
    result = finish(start(tmp_path, *SHORT_RUN, "--data", str(text_file(tmp_path))), timeout=90)
    assert result.error.code == "ranks.nccl_stuck", result.stderr
    assert result.error.detail == "no answer within 2 s"
    assert result.code == ExitCode.DEVICE


def test_an_abort_that_hangs_after_a_successful_trial_is_ignored(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior(abort="hangs_without_gpu", abort_of="trial")
    result = finish(start(tmp_path, *SHORT_RUN, "--data", str(text_file(tmp_path))), timeout=60)
    assert result.code == ExitCode.FINISHED, result.stderr
    assert not result.events_of(protocol.Warn)


def test_a_stop_during_the_trial_ends_all_ranks(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior(trial="hangs")
    data = text_file(tmp_path)
    process = start(tmp_path, *ENDLESS_RUN, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    while "started-trial-0" not in nccl_behavior.marks("started"):
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    send(process, protocol.Stop(id=1))
    result = finish(process, timeout=90)
    assert result.code == ExitCode.STOPPED, result.stderr
    assert not any(is_running(child.pid) for child in children)


# --- during training ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("behavior", "code"), [("sigkill", "failure.killed"), ("ecc_error", "failure.ecc")])
def test_a_rank_lost_during_a_reduction_ends_the_run_without_a_checkpoint(
    behavior: str, code: str, tmp_path: Path, nccl_behavior: NcclBehavior
) -> None:
    """An aborted reduction returns wrong values, which must not be saved."""
    nccl_behavior(training=behavior, rank=1, at=8)  # one to connect, then two per step: fails in step 4
    result = run(tmp_path, *SHORT_RUN, "--save-steps", "1", "--keep-last", "9", "--data", str(text_file(tmp_path)))
    assert result.error.code == code, result.stderr
    assert result.code == result.error.exit_code
    assert [warning.code for warning in result.events_of(protocol.Warn)] == ["ranks.ended"]
    assert "aborted-training-0" in nccl_behavior.marks("aborted")
    assert saved_checkpoints(tmp_path) == [(1, "regular"), (2, "regular"), (3, "regular")]


@pytest.mark.parametrize("abort", ["hangs_without_gpu", "hangs_with_gpu"])
def test_an_abort_that_hangs_does_not_block_the_end_of_the_run(
    abort: str, tmp_path: Path, nccl_behavior: NcclBehavior
) -> None:
    nccl_behavior(training="sigkill", rank=1, at=8, abort=abort)
    process = start(tmp_path, *ENDLESS_RUN, "--data", str(text_file(tmp_path)))
    result = finish(process, timeout=90)
    assert result.error.code == "failure.killed", result.stderr
    assert result.code == result.error.exit_code
    assert not saved_checkpoints(tmp_path)


def test_a_finished_run_exits_if_nccl_hangs(
    tmp_path: Path, nccl_behavior: NcclBehavior, gloo_result: TrainerResult
) -> None:
    nccl_behavior(abort="hangs_without_gpu")
    result = finish(start(tmp_path, *SHORT_RUN, "--data", str(text_file(tmp_path))), timeout=60)
    assert result.code == ExitCode.FINISHED, result.stderr
    assert result.events_of(protocol.Done)[0].reason == "finished"
    assert result.losses == pytest.approx(gloo_result.losses, rel=1e-6)


def test_a_rank_lost_in_a_pause_ends_the_run_without_a_checkpoint(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior()
    data = text_file(tmp_path)
    process = start(tmp_path, *ENDLESS_RUN, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    events = read_until(process, reached_step(3))
    (leader,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    children = [child for child in psutil.Process(leader).children() if child.status() != psutil.STATUS_ZOMBIE]
    (rank_1,) = [child for child in children if "rank" in child.cmdline()]
    send(process, protocol.Pause(id=1))
    read_until(process, entered_phase("paused"))
    os.kill(rank_1.pid, signal.SIGKILL)
    *_, error = read_until(process)  # stdin stays open: closing it would stop the run
    result = finish(process, timeout=90)
    assert isinstance(error, protocol.Error), result.stderr
    assert error.code == "failure.killed"
    assert "aborted-training-0" in nccl_behavior.marks("aborted")
    assert not saved_checkpoints(tmp_path), "an emergency save would wait for the GPU"


# --- error codes --------------------------------------------------------------------------------

USE_NCCL = """
from tests.faults import fake_nccl
fake_nccl.install()
ranks.use_gpus(torch.device("cpu"))
ranks.most(0)
ranks.hear()
"""


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Joined, subprocess.Popen[str]]]:
    """The test process as rank 0 with NCCL, and the process of rank 1."""
    monkeypatch.setenv(BEHAVIOR_VARIABLE, json.dumps({"folder": str(tmp_path)}))
    monkeypatch.setattr(nccl, "usable", lambda device: True)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    with start_ranks(tmp_path, USE_NCCL) as (rank_1,):
        ranks = join_ranks(tmp_path / "rendezvous", 0, 2)
        assert ranks.use_gpus(CPU) == ""
        ranks.most(0)
        yield ranks, rank_1
        assert ranks.close()


def test_a_lost_rank_raises_peer_lost_and_disconnects_the_group(
    tmp_path: Path, two_ranks: tuple[Joined, subprocess.Popen[str]]
) -> None:
    """Without an error code, the run would write an emergency checkpoint."""
    ranks, rank_1 = two_ranks
    leading = Others(
        tiny_config(tmp_path, text_file(tmp_path), ranks=2), RunDir(tmp_path), RunContext(EventDispatcher())
    )
    leading._ranks, leading._processes = ranks, [rank_1]  # type: ignore[list-item]
    leading._look()
    rank_1.kill()
    rank_1.wait()
    with pytest.raises(TraindeckError) as error:
        leading._look()
    assert error.value.code == "failure.peer_lost"
    assert ranks.apart
    assert (tmp_path / "aborted-training-0").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "memory.out"),
        (distributed.DistBackendError(SHARED_MEMORY), "failure.nccl"),
        (RuntimeError(ECC), "failure.ecc"),
        (RuntimeError("CUDA error: invalid argument"), "device.failed"),
        (
            RuntimeError("gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
            "failure.peer_lost",
        ),
        (RuntimeError("unknown error"), "failure.peer_lost"),
    ],
)
def test_a_failed_reduction_raises_the_matching_error(
    error: Exception,
    code: str,
    two_ranks: tuple[Joined, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`failure.peer_lost` would restart the run although the error is permanent."""

    def fail(self: FakeNccl, tensors: list[torch.Tensor]) -> None:
        raise error

    ranks, _ = two_ranks
    monkeypatch.setattr(FakeNccl, "allreduce_coalesced", fail)
    with pytest.raises(TraindeckError) as raised:
        ranks.add_up([torch.ones(2)])
    assert raised.value.code == code
    assert str(error) in raised.value.detail
    assert ranks.apart
