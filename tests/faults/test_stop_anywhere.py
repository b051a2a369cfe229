"""Pause and Stop work in every phase; a Stop saves what was trained."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import torch

from tests.core.trainer_process import TINY, entered_phase, reached_step, start, text_file
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir
from trainer_core.train.engine import compilation

ENDLESS = "100000"  # steps; the run ends only by a Stop
Condition = Callable[[protocol.AnyEvent], bool]


class ControlledTrainer:
    """A trainer process that receives commands on stdin."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        command = ["train", *TINY, "--max-steps", ENDLESS, "--run-dir", name, "--control", "stdin", *arguments]
        self.run_dir, self.events = home / name, list[protocol.AnyEvent]()
        self.process = start(home, *command, stdin=subprocess.PIPE)

    def send(self, command: protocol.AnyCommand) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(protocol.encode(command))
        self.process.stdin.flush()

    def read_until(self, condition: Condition) -> protocol.AnyEvent:
        """Read events up to the first for which `condition` is true; returns that event."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(protocol.decode_event(line))
            if condition(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"the trainer exited: {self.events[-3:]}")

    def stop(self) -> protocol.Done:
        """Stop the trainer; returns its last event."""
        self.send(protocol.Stop(id=99))
        self.read_until(acknowledged(99))
        done = self.read_until(lambda event: isinstance(event, protocol.Done))
        assert self.process.wait(60) == 3
        assert isinstance(done, protocol.Done)
        assert done.reason == "stopped"
        return done

    def assert_all_steps_saved(self, done: protocol.Done) -> None:
        """The newest checkpoint is valid and holds all steps. Without a step, there may be no checkpoint."""
        last_step = max((event.step for event in self.events if isinstance(event, protocol.Step)), default=0)
        assert done.steps >= last_step
        if done.model is None:
            assert not last_step
            return
        checkpoint = checkpoint_dir.list_checkpoints(self.run_dir / "checkpoints")[-1]
        assert checkpoint.name == checkpoint_dir.folder_name(done.steps)
        assert checkpoint_dir.find_problem(checkpoint) is None


def acknowledged(number: int) -> Condition:
    return lambda event: isinstance(event, protocol.Ack) and event.id == number


def reported_progress(name: str) -> Condition:
    return lambda event: isinstance(event, protocol.Progress) and event.phase == name


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, prepared by the first run."""
    home = tmp_path_factory.mktemp("家 home (x)")
    text_file(home, lines=3000)
    return home


@pytest.fixture
def start_trainer(home: Path) -> Iterator[Callable[..., ControlledTrainer]]:
    """Starts trainers, which are killed at the end of the test."""
    trainers: list[ControlledTrainer] = []

    def start_controlled(name: str, *arguments: str) -> ControlledTrainer:
        trainers.append(ControlledTrainer(home, name, "--data", str(home / "文本 text.txt"), *arguments))
        return trainers[-1]

    yield start_controlled
    for trainer in trainers:
        trainer.process.kill()
        trainer.process.communicate()


def pause_and_stop(trainer: ControlledTrainer, condition: Condition) -> None:
    """Pause when the condition is true, resume and stop."""
    trainer.read_until(condition)
    trainer.send(protocol.Pause(id=1))
    trainer.read_until(acknowledged(1))
    paused = trainer.read_until(entered_phase("paused"))
    assert isinstance(paused, protocol.Phase)
    assert paused.reason == "requested"
    trainer.send(protocol.Resume(id=2))
    trainer.read_until(acknowledged(2))
    trainer.assert_all_steps_saved(trainer.stop())


PHASES = {
    "preparing": (("--vocab-size", "2000"), entered_phase("preparing")),
    "training": ((), reached_step(1)),
    "evaluating": (("--eval-steps", "2", "--eval-batches", "0"), reported_progress("evaluating")),
    "saving": (("--save-steps", "2"), entered_phase("saving")),
}


@pytest.mark.parametrize("phase", PHASES)
def test_pause_and_stop_in_every_phase(phase: str, start_trainer: Callable[..., ControlledTrainer]) -> None:
    arguments, condition = PHASES[phase]
    pause_and_stop(start_trainer(phase, *arguments), condition)


@pytest.mark.skipif(compilation.unavailable_reason(torch.device("cpu")) is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_pause_and_stop_during_compilation(
    ranks: str, start_trainer: Callable[..., ControlledTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    trainer = start_trainer(f"compiling-{ranks}", "--compile", "on", "--dropout", "0", "--nproc-per-node", ranks)
    pause_and_stop(trainer, entered_phase("compiling"))
    assert not any(isinstance(event, protocol.Step) for event in trainer.events), "the stop waited for the compiler"


def test_a_stop_interrupts_a_sample(start_trainer: Callable[..., ControlledTrainer]) -> None:
    trainer = start_trainer("sampling")
    trainer.read_until(reached_step(1))
    trainer.send(protocol.SampleCommand(id=1, prompt="Line", max_tokens=60_000))
    trainer.read_until(acknowledged(1))
    trainer.read_until(reached_step(1))  # the sample is generated after this step
    done = trainer.stop()
    assert not any(isinstance(event, protocol.Sample) and event.prompt == "Line" for event in trainer.events)
    trainer.assert_all_steps_saved(done)


def test_a_stop_while_paused_in_an_evaluation_saves_all_steps(
    start_trainer: Callable[..., ControlledTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "memory")
    arguments, condition = PHASES["evaluating"]
    trainer = start_trainer("paused-evaluation", *arguments)
    trainer.read_until(condition)
    trainer.send(protocol.Pause(id=1))
    trainer.read_until(entered_phase("paused"))
    trainer.assert_all_steps_saved(trainer.stop())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ignores TZ")
def test_a_schedule_pauses_by_local_time_and_resume_overrides_it(
    start_trainer: Callable[..., ControlledTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    now = datetime.now().astimezone(ZoneInfo("Asia/Shanghai"))
    pause_hours = f"{now - timedelta(minutes=2):%H:%M}-{now + timedelta(minutes=30):%H:%M}"
    trainer = start_trainer("scheduled", "--pause-between", f"mon-sun {pause_hours}")
    paused = trainer.read_until(entered_phase("paused"))
    assert isinstance(paused, protocol.Phase)
    assert paused.reason == "schedule"
    assert paused.until is not None
    end = datetime.fromtimestamp(paused.until, now.tzinfo)
    assert f"{end:%H:%M}" == pause_hours.partition("-")[2]
    trainer.send(protocol.Resume(id=1))
    trainer.read_until(reached_step(1))
    trainer.assert_all_steps_saved(trainer.stop())
