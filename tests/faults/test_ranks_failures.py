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

from tests.core import trainer as trainer_processes
from tests.core.rank_processes import is_running, join_ranks, start_ranks
from tests.core.test_loop import losses, trainer
from tests.core.trainer import ROOT, TINY, Ended, finish, read_until, run, start, text_file
from tests.faults.test_out_of_memory import limit, moves, wanted, weights
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.data.prepare import prepare
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.train import optimizers
from trainer_core.train.trainer import Trainer

LONG = ["--max-steps", "1000000", "--save-steps", "5", "--compile", "off"]
ENDLESS = ["train", *TINY, *LONG, "--run-dir", "run", "--ranks", "2"]
RANK = """
from tests.faults.test_out_of_memory import limit
made, _ = trainer(folder, config(folder, folder / "文本 text.txt", **SMALL), "run", ranks)
CHANGE
made._is_set_up or made.set_up()
try:
    obey(made, ranks, PeakMemory(torch.device("cpu")))
except EndedByLeader:
    print([weight.detach().double().sum().item() for weight in made.model.parameters()], made.oom.state_dict())
ranks.close()
"""
SMALL = {"max_steps": 8, "eval_steps": 4, "batch_size": 12, "ranks": 2, "validation_fraction": 0.2}
OFF = {"cpu_threads": 1, "perf_steps": 0, "compile": "off"}


def rank_script(change: str = "", **values: object) -> str:
    return RANK.replace("CHANGE", change).replace("SMALL", repr(OFF | SMALL | values))


def leader_trainer(folder: Path, **values: object) -> tuple[Trainer, RecordingSink]:
    """Trainer of rank 0 of two."""
    settings = wanted(folder, **{**SMALL, **values})
    prepare(settings, NullReporter())  # before the other rank does
    return trainer(folder, settings, "run", join_ranks(folder / "rendezvous", 0, 2))


def run_both(made: Trainer, processes: list[subprocess.Popen[str]]) -> None:
    """Run to the end; weights and OOM recovery state of both ranks must be equal."""
    made.run()
    made.ranks.end(0)  # type: ignore[attr-defined]
    output, _ = processes[0].communicate(timeout=60)
    sums = [weight.double().sum().item() for weight in weights(made)]
    assert f"{sums} {made.oom.state_dict()}" == output.strip().splitlines()[-1], output


@pytest.fixture
def single(tmp_path: Path) -> tuple[Trainer, RecordingSink]:
    """The same run of a single process with enough memory."""
    made, kept = trainer(tmp_path, wanted(tmp_path, **{**SMALL, "ranks": 1}), "single")
    made.run()
    return made, kept


def test_out_of_memory_on_one_rank_splits_the_step_on_both(
    tmp_path: Path, single: tuple[Trainer, RecordingSink]
) -> None:
    with start_ranks(tmp_path, rank_script("limit(made, 3, lambda: 2 <= made.state.counters.step < 5)")) as processes:
        made, kept = leader_trainer(tmp_path)
        made.oom._revert_after_steps = 64
        run_both(made, processes)
    assert [(event.step, *move) for event, move in zip(kept.of(protocol.OomRecovery), moves(kept), strict=True)] == [
        (3, "halved", "forward", 3, 4)
    ]
    assert losses(kept) == pytest.approx(losses(single[1]), rel=1e-5)
    assert made.state.counters.samples == single[0].state.counters.samples
    for ours, theirs in zip(weights(made), weights(single[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_freed_memory_is_used_again_by_both_ranks(tmp_path: Path, single: tuple[Trainer, RecordingSink]) -> None:
    with start_ranks(tmp_path, rank_script("made.oom._revert_after_steps = 2")) as processes:
        made, kept = leader_trainer(tmp_path)
        made.oom._revert_after_steps = 2
        limit(made, 3, when=lambda: made.state.counters.step == 1)
        run_both(made, processes)
    assert [(event.step, event.action) for event in kept.of(protocol.OomRecovery)] == [(2, "halved"), (3, "grown")]
    assert losses(kept) == pytest.approx(losses(single[1]), rel=1e-5)


def test_an_evaluation_out_of_memory_on_one_rank_is_split_on_both(
    tmp_path: Path, single: tuple[Trainer, RecordingSink]
) -> None:
    change = "limit(made, 3, lambda: not made.model.training)"
    with start_ranks(tmp_path, rank_script(change)) as processes:
        made, kept = leader_trainer(tmp_path)
        run_both(made, processes)
    assert moves(kept)[0][:2] == ("halved", "evaluation")
    evals, theirs = kept.of(protocol.Eval), single[1].of(protocol.Eval)
    assert [event.loss for event in evals] == pytest.approx([event.loss for event in theirs], rel=1e-5)
    assert [event.tokens for event in evals] == [event.tokens for event in theirs]


SHORT = """
from trainer_core.train import optimizers
allocate, short = optimizers.allocate, [1]
def allocate_short(optimizer):
    if short:
        short.pop()
        raise MemoryError("Tried to allocate 512 MiB")
    allocate(optimizer)
optimizers.allocate = allocate_short
"""


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_out_of_memory_before_the_first_step_is_handled_by_both_ranks(
    failing_rank: int, tmp_path: Path, single: tuple[Trainer, RecordingSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs differ, or one of them displays the desktop. Without a common decision the ranks would deadlock."""
    with start_ranks(tmp_path, rank_script(SHORT if failing_rank else "")) as processes:
        made, kept = leader_trainer(tmp_path)
        if not failing_rank:
            monkeypatch.setattr(optimizers, "allocate", optimizers.allocate)  # restored by monkeypatch
            exec(SHORT, {})
        run_both(made, processes)
    (move,) = kept.of(protocol.OomRecovery)
    assert (move.step, move.action, move.during, move.requested) == (0, "halved", "forward", 512 * 2**20)
    assert losses(kept) == pytest.approx(losses(single[1]), rel=1e-5)


def test_unrecoverable_out_of_memory_on_one_rank_saves_the_last_step(
    tmp_path: Path,
) -> None:
    with start_ranks(tmp_path, rank_script("limit(made, 0, lambda: made.state.counters.step >= 3)")):
        made, _ = leader_trainer(tmp_path)
        with pytest.raises(TraindeckError) as failure:
            made.run()
    assert failure.value.code == "memory.exhausted"
    newest, _ = checkpoint_dir.latest_valid(made.run_dir.checkpoints)
    assert newest is not None
    info = checkpoint_dir.read_info(newest)
    assert info is not None
    assert (info.step, info.kind) == (3, "emergency")


def test_both_ranks_roll_back_a_bad_step_of_one(tmp_path: Path) -> None:
    values = {"on_bad_step": "rollback", "save_steps": 2, "eval_steps": 0, "log_steps": 1}
    poison = """
made.set_up()
loss = made.engine.loss
made.engine.loss = lambda *given: loss(*given) * (float("nan") if made.state.counters.step == 5 and not broken else 1.0)
broken = []
load = made.load
made.load = lambda *where: (broken.append(1), load(*where))
"""
    with start_ranks(tmp_path, rank_script(poison, **values)) as processes:
        made, kept = leader_trainer(tmp_path, **values)
        run_both(made, processes)
    (bad,) = kept.of(protocol.BadStep)
    assert (bad.step, bad.kind, bad.action) == (6, "not_finite", "rolled_back")
    assert [event.params for event in kept.of(protocol.Warn) if event.code == "train.rolled_back"] == [
        {"step": 6, "to": 4}
    ]
    assert made.state.counters.step == 8
    assert made.state.counters.position == 10 * 12  # 8 steps, the bad step and the repeated one


# --- processes that exit --------------------------------------------------------------------------------------


def start_run(home: Path, *more: str) -> tuple[subprocess.Popen[bytes], int, list[protocol.AnyEvent]]:
    """Start a run of two ranks. Returns at its third step, with the PID of rank 1 and the events."""
    data = text_file(home)
    process = start(home, *ENDLESS, "--data", str(data), *more)
    seen = read_until(process, lambda event: isinstance(event, protocol.Step) and event.step >= 3)
    (leader,) = [event.pid for event in seen if isinstance(event, protocol.Hello)]
    (other,) = [
        child.pid
        for child in psutil.Process(leader).children()
        if child.status() != psutil.STATUS_ZOMBIE and "rank" in child.cmdline()
    ]
    return process, other, seen


def have_exited(*pids: int) -> bool:
    """Whether all processes exit within 10 s."""
    end = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def test_a_killed_rank_ends_the_run_and_the_last_step_is_saved(tmp_path: Path) -> None:
    process, other, seen = start_run(tmp_path)
    os.kill(other, signal.SIGKILL)
    ended = finish(process, timeout=30)
    assert ended.error.code == "failure.killed"
    assert ended.code == ended.error.exit_code == TraindeckError("failure.killed").exit_code
    (warned,) = [event for event in ended.of(protocol.Warn) if event.code == "ranks.ended"]
    assert warned.params == {"number": 2, "of": 2, "log": "rank-1.log"}
    newest, _ = checkpoint_dir.latest_valid(tmp_path / "run" / "checkpoints")
    assert newest is not None
    info = checkpoint_dir.read_info(newest)
    last = Ended(0, seen + ended.events, "").of(protocol.Step)[-1].step
    assert info is not None
    assert info.step >= last
    assert have_exited(process.pid, other)


UNREADABLE = """
import sys
if "rank" in sys.orig_argv:
    import trainer_core.data.prepare as preparing

    def prepare(*_):
        raise OSError(5, "Input/output error")

    preparing.prepare = prepare
"""


def test_a_failing_rank_ends_the_run_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has a disk error."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(UNREADABLE, encoding="utf-8")
    environment = trainer_processes.environment
    monkeypatch.setattr(
        trainer_processes,
        "environment",
        lambda home: {**environment(home), "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
    )
    ended = run(tmp_path, *ENDLESS, "--data", str(text_file(tmp_path)))
    assert ended.error.code == "failure.disk_error"
    assert [event.code for event in ended.of(protocol.Warn)] == ["ranks.ended"]
    assert "Input/output error" in (tmp_path / "run" / "rank-1.log").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="not tested on Windows: gloo hangs on Wine")
def test_other_ranks_exit_when_the_leader_is_killed(tmp_path: Path) -> None:
    process, other, _ = start_run(tmp_path)
    process.kill()
    process.communicate()
    assert have_exited(other)


def test_a_rank_with_a_transient_failure_restarts_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver reset ends a rank like this."""
    process, other, _ = start_run(tmp_path, "--restarts", "2")
    os.kill(other, signal.SIGSEGV)
    again = read_until(process, lambda event: isinstance(event, protocol.Step) and event.step >= 8)
    codes = [event.code for event in again if isinstance(event, protocol.Warn | protocol.Error)]
    assert codes[:3] == ["ranks.ended", "failure.access_violation", "run.restarting"]
    hello = next(event for event in again if isinstance(event, protocol.Hello))
    assert hello.resumed_from_step
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == ExitCode.STOPPED, ended.stderr
    assert have_exited(hello.pid)


def test_a_stop_during_preparation_ends_all_ranks(tmp_path: Path) -> None:
    data = text_file(tmp_path, 60_000)
    process = start(tmp_path, *ENDLESS, "--data", str(data), "--control", "stdin", stdin=subprocess.PIPE)
    seen = read_until(process, lambda event: isinstance(event, protocol.Progress))
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Stop(id=1)))
    process.stdin.flush()
    children = psutil.Process(process.pid).children(recursive=True)
    ended = finish(process, timeout=30)
    assert ended.code == ExitCode.STOPPED
    assert ended.of(protocol.Done)[0].steps == 0
    assert not any(isinstance(event, protocol.Ready) for event in seen + ended.events)
    assert have_exited(*(child.pid for child in children))
