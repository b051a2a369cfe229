"""Unexpected exceptions and termination signals save the last step."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer_process import (
    TINY,
    TrainerResult,
    environment,
    finish,
    reached_step,
    read_until,
    run,
    start,
    text_file,
)
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir

STEPS = 12
ARGUMENTS = ("train", *TINY, "--max-steps", str(STEPS), "--save-steps", "4", "--eval-steps", "0", "--keep-last", "9")

FAIL_AT_STEP_5 = """
import sys
from trainer_core import cli
from trainer_core.train.trainer import Trainer
run_step = Trainer._step
def fail_at_step_5(self, window):
    run_step(self, window)
    if self.state.counters.step == 5:
        raise ArithmeticError("test failure")
Trainer._step = fail_at_step_5
cli.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("家 home (x)")
    text_file(home)
    return home


def arguments(home: Path, name: str) -> list[str]:
    return [*ARGUMENTS, "--data", str(home / "文本 text.txt"), "--run-dir", name]


def weights(home: Path, name: str) -> Path:
    return home / name / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors"


def test_an_unexpected_exception_saves_the_last_step(home: Path) -> None:
    command = [sys.executable, "-c", FAIL_AT_STEP_5, *arguments(home, "failed")]
    process = subprocess.Popen(
        command,
        env=environment(home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    result = finish(process)
    assert result.code == 1
    assert result.error.code == "internal"
    assert [(event.step, event.kind) for event in result.events_of(protocol.Checkpoint)] == [
        (4, "regular"),
        (5, "emergency"),
    ]
    resumed, uninterrupted = (
        run(home, "train", "--resume", "--run-dir", "failed"),
        run(home, *arguments(home, "uninterrupted")),
    )
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step == 5
    assert (resumed.code, uninterrupted.code) == (0, 0)
    assert weights(home, "failed").read_bytes() == weights(home, "uninterrupted").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no termination signals")
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_a_termination_signal_saves_the_last_step(home: Path, signal_name: str) -> None:
    process = start(home, *arguments(home, signal_name))
    events = read_until(process, reached_step(4))
    process.send_signal(signal.Signals[signal_name])
    events += read_until(process)
    result = TrainerResult(process.wait(), events, "")
    assert result.code == 3
    (done,) = result.events_of(protocol.Done)
    checkpoint, skipped = checkpoint_dir.latest_valid(home / signal_name / "checkpoints")
    assert checkpoint is not None
    assert not skipped
    assert checkpoint.name == checkpoint_dir.folder_name(done.steps)
