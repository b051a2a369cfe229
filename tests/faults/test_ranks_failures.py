"""Failures of single ranks: all ranks recover in the same way, or all exit and one reports the reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore

from bench.faults.kills import find_ranks
from tests.core import trainer_process
from tests.core.rank_processes import free_port, is_running, run_ranks
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
from tests.waiting import wait_until
from trainer_core import protocol
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.runs import checkpoint_dir
from trainer_core.train.torch_process_group import TorchProcessGroup

LONG = ["--max-steps", "1000000", "--save-steps", "5", "--compile", "off"]
ENDLESS_RUN = ["train", *TINY, *LONG, "--run-dir", "run", "--nproc-per-node", "2"]
SETTINGS = {
    "max_steps": 8,
    "eval_steps": 4,
    "batch_size": 12,
    "log_steps": 1,
    "validation_fraction": 0.2,
    "cpu_threads": 1,
    "perf_steps": 0,
    "compile": "off",
}
SCRIPT = """
with join(info, 60.0 if not rank else None) as group:
    trainer, sink = trainer_of(group, **SETTINGS)
    step = lambda: trainer.state.counters.step
    FAULT
    trainer.run()
    events = [
        {**msgspec.to_builtins(event), "type": type(event).__name__}
        for event in sink.events
        if isinstance(event, protocol.Step | protocol.Eval | protocol.OomRecovery | protocol.BadStep | protocol.Warn)
    ]
    result = {
        "events": events, "weights": weight_sums(trainer), "oom": trainer.oom.state_dict(),
        "step": step(), "position": trainer.state.counters.position,
    }
print(json.dumps(result))
"""


def run_script(folder: Path, fault: str = "", size: int = 2, **values: Any) -> list[dict[str, Any]]:
    """What each rank of a short run reports. `fault`: code that injects a fault, on all ranks."""
    text_file(folder)
    script = SCRIPT.replace("FAULT", fault or "pass").replace("SETTINGS", repr(SETTINGS | values))
    return [json.loads(line) for line in run_ranks(folder, script, size)]


def losses(result: dict[str, Any]) -> list[float]:
    return [event["loss"] for event in result["events"] if event["type"] == "Step"]


def events(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in result["events"] if event["type"] == kind]


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same run of a single process with enough memory."""
    (result,) = run_script(tmp_path_factory.mktemp("single"), size=1)
    return result


def assert_equal(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """All ranks have the same weights and recovery state, and losses equal those of one process within rounding."""
    first, *others = results
    for other in others:
        assert (other["weights"], other["oom"]) == (first["weights"], first["oom"])
    assert losses(first) == pytest.approx(losses(expected), rel=1e-5)
    evals = [[event["loss"] for event in events(result, "Eval")] for result in (first, expected)]
    assert evals[0] == pytest.approx(evals[1], rel=1e-5)
    assert first["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=1e-3)


def test_out_of_memory_on_one_rank_splits_the_step_on_both(tmp_path: Path, single_process: dict[str, Any]) -> None:
    results = run_script(tmp_path, "trainer.set_up(); rank and limit_batch_size(trainer, 3, lambda: 2 <= step() < 5)")
    (event,) = events(results[0], "OomRecovery")
    assert [event[name] for name in ("step", "action", "during", "batch_size")] == [3, "halved", "forward", 3]
    assert_equal(results, single_process)


def test_both_ranks_revert_a_recovery_action_after_good_steps(tmp_path: Path, single_process: dict[str, Any]) -> None:
    fault = "rank or limit_batch_size(trainer, 3, lambda: step() == 1)"
    results = run_script(tmp_path, f"trainer.oom._revert_after_steps = 2; trainer.set_up(); {fault}")
    assert [(event["step"], event["action"]) for event in events(results[0], "OomRecovery")] == [
        (2, "halved"),
        (3, "grown"),
    ]
    assert_equal(results, single_process)


def test_an_evaluation_out_of_memory_on_one_rank_is_split_on_both(
    tmp_path: Path, single_process: dict[str, Any]
) -> None:
    results = run_script(
        tmp_path, "trainer.set_up(); rank and limit_batch_size(trainer, 3, lambda: not trainer.model.training)"
    )
    first = events(results[0], "OomRecovery")[0]
    assert (first["action"], first["during"]) == ("halved", "evaluation")
    assert_equal(results, single_process)


FAIL_ALLOCATION = """
    from trainer_core.train import optimizers
    allocate, failures = optimizers.allocate, [1] if rank == FAILING else []
    def fail_once(optimizer):
        if failures:
            failures.pop()
            raise MemoryError("Tried to allocate 512 MiB")
        allocate(optimizer)
    optimizers.allocate = fail_once
"""


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_out_of_memory_before_the_first_step_is_handled_by_both_ranks(
    failing_rank: int, tmp_path: Path, single_process: dict[str, Any]
) -> None:
    """Ranks that recover differently would deadlock."""
    results = run_script(tmp_path, FAIL_ALLOCATION.replace("FAILING", str(failing_rank)).strip())
    (event,) = events(results[0], "OomRecovery")
    values = [event[name] for name in ("step", "action", "during", "requested")]
    assert values == [0, "halved", "forward", 512 * 2**20]
    assert_equal(results, single_process)


UNRECOVERABLE = """
try:
    with join(info, 60.0 if not rank else None) as group:
        trainer, sink = trainer_of(group, **SETTINGS)
        step = lambda: trainer.state.counters.step
        trainer.set_up()
        eager_loss = trainer.engine.eager_loss
        rank and limit_batch_size(trainer, 0, lambda: step() >= 3)
        trainer.engine.eager_loss = eager_loss
        trainer.run()
except (TraindeckError, PeerFailed) as error:
    print(json.dumps(getattr(error, "code", "peer")))
"""


def test_unrecoverable_out_of_memory_on_one_rank_saves_the_last_step(tmp_path: Path) -> None:
    text_file(tmp_path)
    codes = run_ranks(tmp_path, UNRECOVERABLE.replace("SETTINGS", repr(SETTINGS)))
    assert [json.loads(code) for code in codes] == ["memory.exhausted", "memory.exhausted"]
    checkpoint, _ = checkpoint_dir.latest_valid(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    info = checkpoint_dir.read_info(checkpoint)
    assert info is not None
    assert (info.step, info.kind) == (3, "emergency")


CORRUPT = """
    trainer.set_up()
    loss, rollbacks, load = trainer.engine.loss, [], trainer.load

    def corrupted(*args):
        return loss(*args) * (float("nan") if rank and step() == 5 and not rollbacks else 1.0)

    trainer.engine.loss = corrupted
    trainer.load = lambda *args: (rollbacks.append(1), load(*args))
"""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_both_ranks_roll_back_a_bad_step_of_one(parallel: str, tmp_path: Path) -> None:
    values = {"on_bad_step": "rollback", "save_steps": 2, "eval_steps": 0, "parallel": parallel}
    results = run_script(tmp_path, CORRUPT.strip(), **values)
    (bad_step,) = events(results[0], "BadStep")
    assert [bad_step[name] for name in ("step", "kind", "action")] == [6, "not_finite", "rolled_back"]
    assert [event["params"] for event in events(results[0], "Warn") if event["code"] == "train.rolled_back"] == [
        {"step": 6, "to": 4}
    ]
    for result in results:
        assert result["step"] == 8
        assert result["position"] == 10 * 12, "8 steps, the bad step and the repeated one"


def test_out_of_memory_in_a_pass_that_communicates_restarts_the_run_with_smaller_micro_batches(tmp_path: Path) -> None:
    """Under FSDP ranks wait for each other in every pass."""
    text_file(tmp_path)
    settings = SETTINGS | {"parallel": "fsdp", "save_steps": 2}
    codes = run_ranks(tmp_path, UNRECOVERABLE.replace("trainer, 0,", "trainer, 3,").replace("SETTINGS", repr(settings)))
    assert json.loads(codes[0]) == "memory.restart"
    resumed = SCRIPT.replace("SETTINGS", repr(settings)).replace(
        "FAULT", "limit_batch_size(trainer, 3); trainer.resume(folder / 'run/checkpoints/step-00000002')"
    )
    results = [json.loads(line) for line in run_ranks(tmp_path, resumed)]
    assert results[0]["oom"]["actions"] == ["halved"]
    assert results[0]["step"] == 8


# --- processes that exit --------------------------------------------------------------------------------------


def start_run(home: Path, *more: str) -> tuple[subprocess.Popen[bytes], int, list[protocol.AnyEvent]]:
    """Start a run of two ranks. Returns at its third step, with the PID of rank 1 and the events."""
    data = text_file(home)
    process = start(home, *ENDLESS_RUN, "--data", str(data), *more)
    events = read_until(process, reached_step(3))
    (rank_0,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    (agent,) = [child for child in psutil.Process(process.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    (rank_1,) = [child.pid for child in agent.children() if child.pid != rank_0]
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
    assert (result.error.code, result.error.params) == ("ranks.lost", {"number": 2, "of": 2})
    assert result.code == result.error.exit_code == TraindeckError("ranks.lost").exit_code
    assert [event.code for event in result.events_of(protocol.Warn)] == ["failure.killed"]
    checkpoint, _ = checkpoint_dir.latest_valid(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    info = checkpoint_dir.read_info(checkpoint)
    last = TrainerResult(0, events + result.events, "").events_of(protocol.Step)[-1].step
    assert info is not None
    assert info.step >= last
    assert exit_in_time(process.pid, rank_1)


def test_a_rank_that_waits_for_rank_0_ends_when_that_is_killed(tmp_path: Path) -> None:
    """It waits for a sample, in no operation that a closed connection would end."""
    process, rank_1, events = start_run(tmp_path, "--sample-steps", "4", "--sample-tokens", "4000")
    (rank_0,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    read_until(process, reached_step(4))
    time.sleep(0.5)
    os.kill(rank_0, signal.SIGKILL)
    assert exit_in_time(process.pid, rank_1)


DISK_ERROR = """
import os
if os.environ.get("RANK") == "1":
    import trainer_core.data.prepare as preparing

    def prepare(*_):
        raise OSError(5, "Input/output error")

    preparing.prepare = prepare
"""


def add_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run `code` at the start of each process."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(code, encoding="utf-8")
    environment = trainer_process.environment
    monkeypatch.setattr(
        trainer_process,
        "environment",
        lambda home: {**environment(home), "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
    )


STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_rank_that_waits_for_a_key_notices_that_the_store_does_not_respond() -> None:
    port = free_port()
    command = [sys.executable, "-c", STORE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        group = object.__new__(TorchProcessGroup)
        group._store, group._timeout_s = TCPStore("127.0.0.1", port, is_master=False), 1.0
        assert not group.has_key("a")
        group._store.set("a", "1")
        assert group.has_key("a")
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="timed out"):
            next(group.poll_until_set("b"))
        assert time.monotonic() - began < 5
        server.kill()


def test_an_error_of_one_rank_ends_the_run_with_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_at_start(tmp_path, monkeypatch, DISK_ERROR)
    result = run(tmp_path, *ENDLESS_RUN, "--data", str(text_file(tmp_path)))
    assert result.error.code == "failure.disk_error"
    assert [event.code for event in result.events_of(protocol.Warn)] == ["ranks.failed"]
    assert "Input/output error" in (tmp_path / "run" / "rank-1.log").read_text(encoding="utf-8")


OTHER_DISK = """
import os
if os.environ.get("RANK") == "1":
    from trainer_core.runs.run_dir import RunDir
    from trainer_core.train import build

    build._SHARED_FOLDER_S = 0.5
    create = RunDir.__init__
    RunDir.__init__ = lambda run, path: create(run, path.with_name("on the other machine"))
"""


def test_ranks_that_need_a_shared_run_folder_are_refused_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_at_start(tmp_path, monkeypatch, OTHER_DISK)
    arguments = [*ENDLESS_RUN, "--data", str(text_file(tmp_path)), "--max-steps", "3"]
    copied = tmp_path / "on the other machine"
    copied.mkdir()
    (copied / "run.lock").write_text('{"pid": 1, "started": 1.0}', encoding="utf-8")
    sharded = run(tmp_path, *arguments, "--parallel", "fsdp", "--run-dir", "sharded")
    assert sharded.error.code == "ranks.no_shared_folder"
    assert sharded.error.params == {"number": 2, "of": 2, "path": str(tmp_path / "sharded")}
    assert run(tmp_path, *arguments).code == 0, "DDP without a resume needs none"
    resumed = run(tmp_path, "train", "--resume", "run", "--max-steps", "6")
    assert resumed.error.code == "ranks.no_shared_folder"


@pytest.mark.skipif(sys.platform == "win32", reason="not tested on Windows: gloo hangs on Wine")
def test_all_ranks_exit_when_their_parent_or_rank_0_is_killed(tmp_path: Path) -> None:
    process, rank_1, events = start_run(tmp_path)
    (rank_0,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    process.kill()
    process.communicate()
    assert exit_in_time(rank_0, rank_1)
    process, rank_1, events = start_run(tmp_path, "--run-dir", "second", "--restarts", "0")
    (rank_0,) = [event.pid for event in events if isinstance(event, protocol.Hello)]
    os.kill(rank_0, signal.SIGKILL)
    assert finish(process, timeout=30).code
    assert exit_in_time(rank_1)


def test_a_rank_with_a_transient_failure_restarts_with_the_run(tmp_path: Path) -> None:
    """SIGSEGV stands for a driver reset."""
    process, rank_1, _ = start_run(tmp_path, "--restarts", "2")
    os.kill(rank_1, signal.SIGSEGV)
    events_after_restart = read_until(process, reached_step(8))
    codes = [event.code for event in events_after_restart if isinstance(event, protocol.Warn | protocol.Error)]
    assert codes[:3] == ["ranks.lost", "failure.access_violation", "run.restarting"]
    hello = next(event for event in events_after_restart if isinstance(event, protocol.Hello))
    assert hello.resumed_from_step
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == ExitCode.STOPPED, result.stderr
    assert exit_in_time(hello.pid)


@pytest.mark.parametrize("own_store", ["0", "1"])
def test_ranks_of_two_elastic_agents_meet_again_after_one_was_killed(tmp_path: Path, own_store: str) -> None:
    """Only the agent whose rank was killed counts a restart."""
    text_file(tmp_path)
    options = [
        "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "1", "--max-restarts", "3",
        "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1", "--monitor-interval", "1",
    ]  # fmt: skip
    training = ["train", *TINY, *LONG, "--max-steps", "100", "--data", "文本 text.txt", "--output", "json"]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, "--rdzv-conf", f"is_host={1 - number}",
             "-m", "trainer_core", *training, "--run-dir", "run", "--collective-timeout-s", "30"],
            env=trainer_process.environment(tmp_path) | {
                "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": own_store,
            },
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(tmp_path / f"agent-{number}.log").open("wb"),
        )
        for number in (0, 1)
    ]  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "run" / "checkpoints" / "step-00000005").is_dir(), 90)
        ranks = [rank for agent in agents for rank in find_ranks(agent.pid)]
        next(rank for rank in ranks if rank.environ()["RANK"] == "1").kill()
        assert [agent.wait(150) for agent in agents] == [0, 0], (tmp_path / "agent-0.log").read_text(encoding="utf-8")
        assert (tmp_path / "run" / "events.jsonl").read_bytes().count(b'"type":"hello"') == 2
    finally:
        for agent in agents:
            for process in psutil.Process(agent.pid).children(recursive=True) if agent.poll() is None else []:
                process.kill()
            agent.kill()


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
