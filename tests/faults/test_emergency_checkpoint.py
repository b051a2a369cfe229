"""Unexpected exceptions and termination signals save the last step."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer import TINY, Ended, environment, finish, read_until, run, start, text_file
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir

STEPS = 12
ARGUMENTS = ("train", *TINY, "--max-steps", str(STEPS), "--save-steps", "4", "--eval-steps", "0", "--keep-last", "9")

FAILS = """
import sys
from trainer_core import cli
from trainer_core.train.trainer import Trainer
step = Trainer._step
def fails(self, window):
    step(self, window)
    if self.state.counters.step == 5:
        raise ArithmeticError("nobody expected this")
Trainer._step = fails
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
    command = [sys.executable, "-c", FAILS, *arguments(home, "failed")]
    process = subprocess.Popen(
        command,
        env=environment(home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ended = finish(process)
    assert ended.code == 1
    assert ended.error.code == "internal"
    assert [(event.step, event.kind) for event in ended.of(protocol.Checkpoint)] == [(4, "regular"), (5, "emergency")]
    resumed, whole = run(home, "train", "--resume", "--run-dir", "failed"), run(home, *arguments(home, "whole"))
    assert resumed.of(protocol.Hello)[0].resumed_from_step == 5
    assert (resumed.code, whole.code) == (0, 0)
    assert weights(home, "failed").read_bytes() == weights(home, "whole").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals between processes")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_termination_signal_saves_the_last_step(home: Path, number: str) -> None:
    process = start(home, *arguments(home, number))
    events = read_until(process, lambda event: isinstance(event, protocol.Step) and event.step == 4)
    process.send_signal(signal.Signals[number])
    events += read_until(process)
    ended = Ended(process.wait(), events, "")
    assert ended.code == 3
    (done,) = ended.of(protocol.Done)
    newest, skipped = checkpoint_dir.latest_valid(home / number / "checkpoints")
    assert newest is not None
    assert not skipped
    assert newest.name == checkpoint_dir.folder_name(done.steps)
