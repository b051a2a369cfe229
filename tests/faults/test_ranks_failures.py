"""Failures of single ranks: all ranks recover in the same way, or all exit and one reports the reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.core import trainer_process
from tests.core.rank_processes import is_running, join_ranks, start_ranks
from tests.core.trainer_process import (
    ROOT,
    TINY,
    TrainerResult,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from tests.core.training import build_trainer, copy_weights, limit_batch_size, losses, oom_config, recovery_actions
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.data.prepare import prepare
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.train import optimizers
from trainer_core.train.trainer import Trainer

LONG = ["--max-steps", "1000000", "--save-steps", "5", "--compile", "off"]
ENDLESS_RUN = ["train", *TINY, *LONG, "--run-dir", "run", "--ranks", "2"]
RANK_SCRIPT = """
from tests.core.training import limit_batch_size
trainer, _ = build_trainer(folder, tiny_config(folder, folder / "文本 text.txt", **SETTINGS), "run", ranks)
FAULT
trainer._is_set_up or trainer.set_up()
try:
    obey(trainer, ranks, PeakMemory(torch.device("cpu")))
except EndedByLeader:
    print([weight.detach().double().sum().item() for weight in trainer.model.parameters()], trainer.oom.state_dict())
ranks.close()
"""
SETTINGS = {"max_steps": 8, "eval_steps": 4, "batch_size": 12, "ranks": 2, "validation_fraction": 0.2}
BASE_SETTINGS = {"cpu_threads": 1, "perf_steps": 0, "compile": "off"}


def rank_script(fault: str = "", **values: object) -> str:
    """Script of rank 1, with code that injects a fault."""
    return RANK_SCRIPT.replace("FAULT", fault).replace("SETTINGS", repr(BASE_SETTINGS | SETTINGS | values))


def leader_trainer(folder: Path, **values: object) -> tuple[Trainer, RecordingSink]:
    """Trainer of rank 0 of two."""
    settings = oom_config(folder, **{**SETTINGS, **values})
    prepare(settings, NullReporter())  # before the other rank does
    return build_trainer(folder, settings, "run", join_ranks(folder / "rendezvous", 0, 2))


def run_both(leader: Trainer, processes: list[subprocess.Popen[str]]) -> None:
    """Run to the end; weights and OOM recovery state of both ranks must be equal."""
    leader.run()
    leader.ranks.end(0)  # type: ignore[attr-defined]
    output, _ = processes[0].communicate(timeout=60)
    sums = [weight.double().sum().item() for weight in copy_weights(leader)]
    assert f"{sums} {leader.oom.state_dict()}" == output.strip().splitlines()[-1], output


@pytest.fixture
def single_process(tmp_path: Path) -> tuple[Trainer, RecordingSink]:
    """The same run of a single process with enough memory."""
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, **{**SETTINGS, "ranks": 1}), "single")
    trainer.run()
    return trainer, sink


def test_out_of_memory_on_one_rank_splits_the_step_on_both(
    tmp_path: Path, single_process: tuple[Trainer, RecordingSink]
) -> None:
    with start_ranks(
        tmp_path, rank_script("limit_batch_size(trainer, 3, lambda: 2 <= trainer.state.counters.step < 5)")
    ) as processes:
        leader, sink = leader_trainer(tmp_path)
        leader.oom._revert_after_steps = 64
        run_both(leader, processes)
    assert [
        (event.step, *action)
        for event, action in zip(sink.events_of(protocol.OomRecovery), recovery_actions(sink), strict=True)
    ] == [(3, "halved", "forward", 3, 4)]
    assert losses(sink) == pytest.approx(losses(single_process[1]), rel=1e-5)
    assert leader.state.counters.samples == single_process[0].state.counters.samples
    for actual, expected in zip(copy_weights(leader), copy_weights(single_process[0]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-5)


def test_both_ranks_revert_a_recovery_action_after_good_steps(
    tmp_path: Path, single_process: tuple[Trainer, RecordingSink]
) -> None:
    with start_ranks(tmp_path, rank_script("trainer.oom._revert_after_steps = 2")) as processes:
        leader, sink = leader_trainer(tmp_path)
        leader.oom._revert_after_steps = 2
        limit_batch_size(leader, 3, when=lambda: leader.state.counters.step == 1)
        run_both(leader, processes)
    assert [(event.step, event.action) for event in sink.events_of(protocol.OomRecovery)] == [
        (2, "halved"),
        (3, "grown"),
    ]
    assert losses(sink) == pytest.approx(losses(single_process[1]), rel=1e-5)


def test_an_evaluation_out_of_memory_on_one_rank_is_split_on_both(
    tmp_path: Path, single_process: tuple[Trainer, RecordingSink]
) -> None:
    fault = "limit_batch_size(trainer, 3, lambda: not trainer.model.training)"
    with start_ranks(tmp_path, rank_script(fault)) as processes:
        leader, sink = leader_trainer(tmp_path)
        run_both(leader, processes)
    assert recovery_actions(sink)[0][:2] == ("halved", "evaluation")
    actual, expected = sink.events_of(protocol.Eval), single_process[1].events_of(protocol.Eval)
    assert [event.loss for event in actual] == pytest.approx([event.loss for event in expected], rel=1e-5)
    assert [event.tokens for event in actual] == [event.tokens for event in expected]


FAIL_ALLOCATION = """
from trainer_core.train import optimizers
allocate, failures = optimizers.allocate, [1]
def fail_once(optimizer):
    if failures:
        failures.pop()
        raise MemoryError("Tried to allocate 512 MiB")
    allocate(optimizer)
optimizers.allocate = fail_once
"""


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_out_of_memory_before_the_first_step_is_handled_by_both_ranks(
    failing_rank: int, tmp_path: Path, single_process: tuple[Trainer, RecordingSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that recover differently would deadlock."""
    with start_ranks(tmp_path, rank_script(FAIL_ALLOCATION if failing_rank else "")) as processes:
        leader, sink = leader_trainer(tmp_path)
        if not failing_rank:
            monkeypatch.setattr(optimizers, "allocate", optimizers.allocate)  # restored by monkeypatch
            exec(FAIL_ALLOCATION, {})
        run_both(leader, processes)
    (event,) = sink.events_of(protocol.OomRecovery)
    assert (event.step, event.action, event.during, event.requested) == (0, "halved", "forward", 512 * 2**20)
    assert losses(sink) == pytest.approx(losses(single_process[1]), rel=1e-5)


def test_unrecoverable_out_of_memory_on_one_rank_saves_the_last_step(
    tmp_path: Path,
) -> None:
    with start_ranks(tmp_path, rank_script("limit_batch_size(trainer, 0, lambda: trainer.state.counters.step >= 3)")):
        leader, _ = leader_trainer(tmp_path)
        with pytest.raises(TraindeckError) as error:
            leader.run()
    assert error.value.code == "memory.exhausted"
    checkpoint, _ = checkpoint_dir.latest_valid(leader.run_dir.checkpoints)
    assert checkpoint is not None
    info = checkpoint_dir.read_info(checkpoint)
    assert info is not None
    assert (info.step, info.kind) == (3, "emergency")


def test_both_ranks_roll_back_a_bad_step_of_one(tmp_path: Path) -> None:
    values = {"on_bad_step": "rollback", "save_steps": 2, "eval_steps": 0, "log_steps": 1}
    not_finite_loss = """
trainer.set_up()
loss = trainer.engine.loss
rollbacks = []

def corrupted(*args):
    return loss(*args) * (float("nan") if trainer.state.counters.step == 5 and not rollbacks else 1.0)

trainer.engine.loss = corrupted
load = trainer.load
trainer.load = lambda *args: (rollbacks.append(1), load(*args))
"""
    with start_ranks(tmp_path, rank_script(not_finite_loss, **values)) as processes:
        leader, sink = leader_trainer(tmp_path, **values)
        run_both(leader, processes)
    (bad_step,) = sink.events_of(protocol.BadStep)
    assert (bad_step.step, bad_step.kind, bad_step.action) == (6, "not_finite", "rolled_back")
    assert [event.params for event in sink.events_of(protocol.Warn) if event.code == "train.rolled_back"] == [
        {"step": 6, "to": 4}
    ]
    assert leader.state.counters.step == 8
    assert leader.state.counters.position == 10 * 12  # 8 steps, the bad step and the repeated one


# --- processes that exit --------------------------------------------------------------------------------------


def start_run(home: Path, *more: str) -> tuple[subprocess.Popen[bytes], int, list[protocol.AnyEvent]]:
    """Start a run of two ranks. Returns at its third step, with the PID of rank 1 and the events."""
    data = text_file(home)
    process = start(home, *ENDLESS_RUN, "--data", str(data), *more)
    events = read_until(process, reached_step(3))
    (leader_pid,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    (rank_1,) = [
        child.pid
        for child in psutil.Process(leader_pid).children()
        if child.status() != psutil.STATUS_ZOMBIE and "rank" in child.cmdline()
    ]
    return process, rank_1, events


def exit_in_time(*pids: int) -> bool:
    """Whether all processes exit within 10 s."""
    end = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def test_a_killed_rank_ends_the_run_and_the_last_step_is_saved(tmp_path: Path) -> None:
    process, rank_1, events = start_run(tmp_path)
    os.kill(rank_1, signal.SIGKILL)
    result = finish(process, timeout=30)
    assert result.error.code == "failure.killed"
    assert result.code == result.error.exit_code == TraindeckError("failure.killed").exit_code
    (warning,) = [event for event in result.events_of(protocol.Warn) if event.code == "ranks.ended"]
    assert warning.params == {"number": 2, "of": 2, "log": "rank-1.log"}
    checkpoint, _ = checkpoint_dir.latest_valid(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    info = checkpoint_dir.read_info(checkpoint)
    last = TrainerResult(0, events + result.events, "").events_of(protocol.Step)[-1].step
    assert info is not None
    assert info.step >= last
    assert exit_in_time(process.pid, rank_1)


DISK_ERROR = """
import sys
if "rank" in sys.orig_argv:
    import trainer_core.data.prepare as preparing

    def prepare(*_):
        raise OSError(5, "Input/output error")

    preparing.prepare = prepare
"""


def test_an_error_of_one_rank_ends_the_run_with_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DISK_ERROR, encoding="utf-8")
    environment = trainer_process.environment
    monkeypatch.setattr(
        trainer_process,
        "environment",
        lambda home: {**environment(home), "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
    )
    result = run(tmp_path, *ENDLESS_RUN, "--data", str(text_file(tmp_path)))
    assert result.error.code == "failure.disk_error"
    assert [event.code for event in result.events_of(protocol.Warn)] == ["ranks.ended"]
    assert "Input/output error" in (tmp_path / "run" / "rank-1.log").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="not tested on Windows: gloo hangs on Wine")
def test_other_ranks_exit_when_the_leader_is_killed(tmp_path: Path) -> None:
    process, rank_1, _ = start_run(tmp_path)
    process.kill()
    process.communicate()
    assert exit_in_time(rank_1)


def test_a_rank_with_a_transient_failure_restarts_with_the_run(tmp_path: Path) -> None:
    """SIGSEGV stands for a driver reset."""
    process, rank_1, _ = start_run(tmp_path, "--restarts", "2")
    os.kill(rank_1, signal.SIGSEGV)
    events_after_restart = read_until(process, reached_step(8))
    codes = [event.code for event in events_after_restart if isinstance(event, protocol.Warn | protocol.Error)]
    assert codes[:3] == ["ranks.ended", "failure.access_violation", "run.restarting"]
    hello = next(event for event in events_after_restart if isinstance(event, protocol.Hello))
    assert hello.resumed_from_step
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == ExitCode.STOPPED, result.stderr
    assert exit_in_time(hello.pid)


def test_a_stop_during_preparation_ends_all_ranks(tmp_path: Path) -> None:
    data = text_file(tmp_path, 60_000)
    process = start(tmp_path, *ENDLESS_RUN, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    events = read_until(process, lambda event: isinstance(event, protocol.Progress))
    send(process, protocol.Stop(id=1))
    children = psutil.Process(process.pid).children(recursive=True)
    result = finish(process, timeout=30)
    assert result.code == ExitCode.STOPPED
    assert result.events_of(protocol.Done)[0].steps == 0
    assert not any(isinstance(event, protocol.Ready) for event in events + result.events)
    assert exit_in_time(*(child.pid for child in children))
