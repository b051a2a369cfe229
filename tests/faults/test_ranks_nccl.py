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

from tests.core import trainer as trainer_processes
from tests.core.rank_processes import is_running, join_ranks, start_ranks
from tests.core.test_loop import config
from tests.core.trainer import ROOT, TINY, Ended, finish, read_until, run, start, text_file
from tests.faults.fake_nccl import ECC, PLAN, SHARED_MEMORY, SITE, FakeNccl
from trainer_core import protocol
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import nccl
from trainer_core.train.joined import Joined
from trainer_core.train.leading import Others
from trainer_core.wire import EventDispatcher

SHORT = ["train", *TINY, "--max-steps", "6", "--dropout", "0", "--compile", "off", "--run-dir", "run", "--ranks", "2"]
ENDLESS = [*SHORT, "--max-steps", "1000000", "--save-steps", "1000000"]
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no NCCL on Windows")


class NcclBehavior:
    """Sets the behavior of NCCL in the processes of a test."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self._home, self._patch = home, patch
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        path = os.pathsep.join([str(home / "site"), str(ROOT)])
        environment = trainer_processes.environment
        patch.setattr(trainer_processes, "environment", lambda home: {**environment(home), "PYTHONPATH": path})

    def __call__(self, **does: object) -> None:
        self._patch.setenv(PLAN, json.dumps({"folder": str(self._home), **does}))

    def marks(self, name: str) -> list[str]:
        return sorted(path.name for path in self._home.glob(f"{name}-*"))


@pytest.fixture
def nccl_behavior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclBehavior:
    return NcclBehavior(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The same run without NCCL."""
    home = tmp_path_factory.mktemp("gloo")
    ended = run(home, *SHORT, "--data", str(text_file(home)))
    assert ended.code == 0, ended.stderr
    return ended


def checkpoints(home: Path) -> list[tuple[int, str]]:
    found = []
    for folder in sorted((home / "run" / "checkpoints").glob("step-*")):
        info = checkpoint_dir.read_info(folder)
        assert info is not None
        found.append((info.step, info.kind))
    return found


# --- before the first step -----------------------------------------------------------------------------------


def test_gradients_use_nccl_if_the_trial_reduction_succeeds(
    tmp_path: Path, nccl_behavior: NcclBehavior, over_gloo: Ended
) -> None:
    nccl_behavior()
    ended = run(tmp_path, *SHORT, "--data", str(text_file(tmp_path)))
    assert ended.code == 0, ended.stderr
    assert not ended.of(protocol.Warn)
    assert ended.losses == pytest.approx(over_gloo.losses, rel=1e-6)
    assert nccl_behavior.marks("began") == ["began-training-0", "began-training-1", "began-trial-0", "began-trial-1"]
    assert len(nccl_behavior.marks("aborted")) == 4, "NCCL releases the GPUs"


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ({"trial": "raises"}, "/dev/shm/nccl-a1b2"),
        ({"trial": "raises", "rank": 0}, "/dev/shm/nccl-a1b2"),
        ({"trial": "raises", "rank": 1, "deadline": 600.0}, "/dev/shm/nccl-a1b2"),
        ({"trial": "is wrong", "rank": 1, "deadline": 600.0}, "2 ranks added up 1 to 3"),
        ({"trial": "hangs", "deadline": 2.0}, "no answer within 2 s"),
        ({"trial": "hangs", "rank": 1, "deadline": 2.0}, "no answer within 2 s"),
    ],
)
def test_all_ranks_fall_back_to_gloo_with_one_warning_if_nccl_fails(
    does: dict[str, object], reason: str, tmp_path: Path, nccl_behavior: NcclBehavior, over_gloo: Ended
) -> None:
    nccl_behavior(**does)
    ended = run(tmp_path, *SHORT, "--data", str(text_file(tmp_path)))
    assert ended.code == 0, ended.stderr
    (warned,) = ended.of(protocol.Warn)
    assert warned.code == "ranks.no_nccl"
    assert reason in warned.params["reason"]
    assert ended.losses == over_gloo.losses
    assert nccl_behavior.marks("aborted") == ["aborted-trial-0", "aborted-trial-1"]


def test_a_trial_reduction_that_cannot_be_aborted_ends_the_run(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    """All later work would wait for the GPU."""
    nccl_behavior(trial="hangs", deadline=2.0, abort="and holds the GPU", abort_of="trial")
    ended = finish(start(tmp_path, *SHORT, "--data", str(text_file(tmp_path))), timeout=90)
    assert ended.error.code == "ranks.nccl_stuck", ended.stderr
    assert ended.error.detail == "no answer within 2 s"
    assert ended.code == ExitCode.DEVICE


def test_an_abort_that_hangs_after_a_successful_trial_is_ignored(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior(abort="and lets the GPU go", abort_of="trial")
    ended = finish(start(tmp_path, *SHORT, "--data", str(text_file(tmp_path))), timeout=60)
    assert ended.code == ExitCode.FINISHED, ended.stderr
    assert not ended.of(protocol.Warn)


def test_a_stop_during_the_trial_ends_all_ranks(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior(trial="hangs")
    data = text_file(tmp_path)
    process = start(tmp_path, *ENDLESS, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    while "began-trial-0" not in nccl_behavior.marks("began"):
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Stop(id=1)))
    process.stdin.flush()
    ended = finish(process, timeout=90)
    assert ended.code == ExitCode.STOPPED, ended.stderr
    assert not any(is_running(child.pid) for child in children)


# --- during training ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("does", "code"), [("dies", "failure.killed"), ("fails", "failure.ecc")])
def test_a_rank_lost_during_a_reduction_ends_the_run_without_a_checkpoint(
    does: str, code: str, tmp_path: Path, nccl_behavior: NcclBehavior
) -> None:
    """An aborted reduction returns wrong values, which must not be saved."""
    nccl_behavior(training=does, rank=1, at=8)  # one to connect, then two per step: fails in step 4
    ended = run(tmp_path, *SHORT, "--save-steps", "1", "--keep-last", "9", "--data", str(text_file(tmp_path)))
    assert ended.error.code == code, ended.stderr
    assert ended.code == ended.error.exit_code
    assert [warned.code for warned in ended.of(protocol.Warn)] == ["ranks.ended"]
    assert "aborted-training-0" in nccl_behavior.marks("aborted")
    assert checkpoints(tmp_path) == [(1, "regular"), (2, "regular"), (3, "regular")]


@pytest.mark.parametrize("abort", ["and lets the GPU go", "and holds the GPU"])
def test_an_abort_that_hangs_does_not_block_the_end_of_the_run(
    abort: str, tmp_path: Path, nccl_behavior: NcclBehavior
) -> None:
    nccl_behavior(training="dies", rank=1, at=8, abort=abort)
    process = start(tmp_path, *ENDLESS, "--data", str(text_file(tmp_path)))
    ended = finish(process, timeout=90)
    assert ended.error.code == "failure.killed", ended.stderr
    assert ended.code == ended.error.exit_code
    assert not checkpoints(tmp_path)


def test_a_finished_run_exits_if_nccl_hangs(tmp_path: Path, nccl_behavior: NcclBehavior, over_gloo: Ended) -> None:
    nccl_behavior(abort="and lets the GPU go")
    ended = finish(start(tmp_path, *SHORT, "--data", str(text_file(tmp_path))), timeout=60)
    assert ended.code == ExitCode.FINISHED, ended.stderr
    assert ended.of(protocol.Done)[0].reason == "finished"
    assert ended.losses == pytest.approx(over_gloo.losses, rel=1e-6)


def test_a_rank_lost_in_a_pause_ends_the_run_without_a_checkpoint(tmp_path: Path, nccl_behavior: NcclBehavior) -> None:
    nccl_behavior()
    data = text_file(tmp_path)
    process = start(tmp_path, *ENDLESS, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    seen = read_until(process, lambda event: isinstance(event, protocol.Step) and event.step >= 3)
    (leader,) = [event.pid for event in seen if isinstance(event, protocol.Hello)]
    living = [child for child in psutil.Process(leader).children() if child.status() != psutil.STATUS_ZOMBIE]
    (other,) = [child for child in living if "rank" in child.cmdline()]
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Pause(id=1)))
    process.stdin.flush()
    read_until(process, lambda event: isinstance(event, protocol.Phase) and event.phase == "paused")
    os.kill(other.pid, signal.SIGKILL)
    *_, error = read_until(process)  # stdin stays open: closing it would stop the run
    ended = finish(process, timeout=90)
    assert isinstance(error, protocol.Error), ended.stderr
    assert error.code == "failure.killed"
    assert "aborted-training-0" in nccl_behavior.marks("aborted")
    assert not checkpoints(tmp_path), "an emergency save would wait for the GPU"


# --- error codes --------------------------------------------------------------------------------

USE_NCCL = """
from tests.faults import fake_nccl
fake_nccl.install()
ranks.use_gpus(torch.device("cpu"))
ranks.most(0)
ranks.hear()
"""


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Joined, subprocess.Popen[str]]]:
    """The test process as rank 0 with NCCL, and the process of rank 1."""
    monkeypatch.setenv(PLAN, json.dumps({"folder": str(tmp_path)}))
    monkeypatch.setattr(nccl, "usable", lambda device: True)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    with start_ranks(tmp_path, USE_NCCL) as (other,):
        ranks = join_ranks(tmp_path / "rendezvous", 0, 2)
        assert ranks.use_gpus(CPU) == ""
        ranks.most(0)
        yield ranks, other
        assert ranks.close()


def test_a_lost_rank_raises_peer_lost_and_disconnects_the_group(
    tmp_path: Path, both: tuple[Joined, subprocess.Popen[str]]
) -> None:
    """An error without a code would trigger an emergency checkpoint."""
    ranks, other = both
    leading = Others(config(tmp_path, text_file(tmp_path), ranks=2), RunDir(tmp_path), RunContext(EventDispatcher()))
    leading._ranks, leading._processes = ranks, [other]  # type: ignore[list-item]
    leading._look()
    other.kill()
    other.wait()
    with pytest.raises(TraindeckError) as failure:
        leading._look()
    assert failure.value.code == "failure.peer_lost"
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
    both: tuple[Joined, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost peer would restart the run in vain."""

    def fail(self: FakeNccl, tensors: list[torch.Tensor]) -> None:
        raise error

    ranks, _ = both
    monkeypatch.setattr(FakeNccl, "allreduce_coalesced", fail)
    with pytest.raises(TraindeckError) as failure:
        ranks.add_up([torch.ones(2)])
    assert failure.value.code == code
    assert str(error) in failure.value.detail
    assert ranks.apart
