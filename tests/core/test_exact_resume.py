"""An interrupted and resumed run equals an uninterrupted one, bit for bit, on the CPU."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.trainer_process import (
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
from trainer_core import protocol

STEPS = 24
ARGUMENTS = ["train", *TINY, "--max-steps", str(STEPS), "--save-steps", "6", "--keep-last", "9", "--run-dir", "run"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home (x)")


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> TrainerResult:
    data = text_file(home)
    result = run(home, *ARGUMENTS[:-1], "uninterrupted", "--data", str(data))
    assert result.code == 0, result.stderr
    return result


def assert_same_run(home: Path, name: str, expected: TrainerResult, *results: TrainerResult) -> None:
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"):
        assert (home / name / last / file).read_bytes() == (home / "uninterrupted" / last / file).read_bytes(), file
    for result in results:
        assert result.losses.items() <= expected.losses.items()
    samples = {(event.step, event.prompt): event.text for event in expected.events_of(protocol.Sample)}
    resumed_samples = {
        (event.step, event.prompt): event.text for result in results for event in result.events_of(protocol.Sample)
    }
    assert resumed_samples.items() <= samples.items()
    assert results[-1].losses[STEPS] == expected.losses[STEPS]
    evals = {event.step: event.loss for event in expected.events_of(protocol.Eval)}
    assert {event.step: event.loss for event in results[-1].events_of(protocol.Eval)}.items() <= evals.items()


def test_a_resume_after_a_stop_is_exact(home: Path, uninterrupted: TrainerResult) -> None:
    data = str(home / "文本 text.txt")
    process = start(home, *ARGUMENTS[:-1], "stopped", "--data", data, "--control", "stdin", stdin=subprocess.PIPE)
    before = read_until(process, reached_step(4))
    send(process, protocol.Stop(id=1))
    stopped_end = finish(process)
    assert stopped_end.code == 3
    assert stopped_end.events_of(protocol.Ack)[0].id == 1
    assert stopped_end.events_of(protocol.Done)[0].reason == "stopped"
    stopped = TrainerResult(stopped_end.code, before + stopped_end.events, stopped_end.stderr)
    stopped_at = stopped_end.events_of(protocol.Done)[0].steps
    assert stopped_at < STEPS
    resumed = run(home, "train", "--resume", "--run-dir", "stopped")
    assert resumed.code == 0
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step == stopped_at
    assert not resumed.events_of(protocol.Warn)
    assert_same_run(home, "stopped", uninterrupted, stopped, resumed)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C cannot be sent to a single process on Windows")
def test_a_resume_after_ctrl_c_is_exact(home: Path, uninterrupted: TrainerResult) -> None:
    process = start(home, *ARGUMENTS[:-1], "interrupted", "--data", str(home / "文本 text.txt"))
    read_until(process, reached_step(7))
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 3
    resumed = run(home, "train", "--resume", "interrupted")
    assert resumed.code == 0
    assert_same_run(home, "interrupted", uninterrupted, resumed)


@pytest.mark.parametrize("kill_step", [8, 19])
def test_a_resume_after_a_kill_is_exact(home: Path, uninterrupted: TrainerResult, kill_step: int) -> None:
    name = f"killed-{kill_step}"
    process = start(home, *ARGUMENTS[:-1], name, "--data", str(home / "文本 text.txt"))
    events = read_until(process, reached_step(kill_step))
    saved_steps = [event.step for event in events if isinstance(event, protocol.Checkpoint)]
    time.sleep(random.Random(kill_step).random() * 0.05)  # during a step or a save
    process.kill()
    process.communicate()
    resumed = run(home, "train", "--resume", name)
    assert resumed.code == 0, resumed.stderr
    resumed_from = resumed.events_of(protocol.Hello)[0].resumed_from_step
    assert resumed_from >= max([0, *saved_steps]), "a checkpoint was reported before it was complete"
    assert resumed_from >= kill_step // 6 * 6 - 6, "resumed before the last but one checkpoint"
    assert_same_run(home, name, uninterrupted, resumed)
