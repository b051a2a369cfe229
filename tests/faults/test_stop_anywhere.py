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

from tests.core.trainer import TINY, start, text_file
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir
from trainer_core.train.engine import compilation

LONG = "100000"  # steps: it ends only by being stopped
Seen = Callable[[protocol.AnyEvent], bool]


class Talk:
    """A trainer that is listened to and spoken to."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        lines = ["train", *TINY, "--max-steps", LONG, "--run-dir", name, "--control", "stdin", *arguments]
        self.run, self.events = home / name, list[protocol.AnyEvent]()
        self.process = start(home, *lines, stdin=subprocess.PIPE)

    def say(self, command: protocol.AnyCommand) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(protocol.encode(command))
        self.process.stdin.flush()

    def until(self, seen: Seen) -> protocol.AnyEvent:
        """Listen up to an event like this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(protocol.decode_event(line))
            if seen(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended: {self.events[-3:]}")

    def stopped(self) -> protocol.Done:
        """Stop it; what it says last."""
        self.say(protocol.Stop(id=99))
        self.until(acknowledged(99))
        done = self.until(lambda event: isinstance(event, protocol.Done))
        assert self.process.wait(60) == 3
        assert isinstance(done, protocol.Done)
        assert done.reason == "stopped"
        return done

    def assert_nothing_is_lost(self, done: protocol.Done) -> None:
        """The newest checkpoint is valid and holds every step; before the first step there may be none."""
        made = max((event.step for event in self.events if isinstance(event, protocol.Step)), default=0)
        assert done.steps >= made
        if done.model is None:
            assert not made
            return
        newest = checkpoint_dir.list_checkpoints(self.run / "checkpoints")[-1]
        assert newest.name == checkpoint_dir.folder_name(done.steps)
        assert checkpoint_dir.find_problem(newest) is None


def acknowledged(number: int) -> Seen:
    return lambda event: isinstance(event, protocol.Ack) and event.id == number


def phase(name: str) -> Seen:
    return lambda event: isinstance(event, protocol.Phase) and event.phase == name


def progress(name: str) -> Seen:
    return lambda event: isinstance(event, protocol.Progress) and event.phase == name


def a_step(event: protocol.AnyEvent) -> bool:
    return isinstance(event, protocol.Step)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, which the first run prepares for all of them."""
    home = tmp_path_factory.mktemp("家 home (x)")
    text_file(home, lines=3000)
    return home


@pytest.fixture
def talk(home: Path) -> Iterator[Callable[..., Talk]]:
    """Starts a trainer; one that still runs at the end of the test is killed."""
    begun: list[Talk] = []

    def begin(name: str, *arguments: str) -> Talk:
        begun.append(Talk(home, name, "--data", str(home / "文本 text.txt"), *arguments))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.communicate()


def pause_and_stop(one: Talk, there: Seen) -> None:
    """Pause where it is, go on, and stop."""
    one.until(there)
    one.say(protocol.Pause(id=1))
    one.until(acknowledged(1))
    paused = one.until(phase("paused"))
    assert isinstance(paused, protocol.Phase)
    assert paused.reason == "requested"
    one.say(protocol.Resume(id=2))
    one.until(acknowledged(2))
    one.assert_nothing_is_lost(one.stopped())


WAYS = {
    "preparing": (("--vocab-size", "2000"), phase("preparing")),
    "training": ((), a_step),
    "evaluating": (("--eval-steps", "2", "--eval-batches", "0"), progress("evaluating")),
    "saving": (("--save-steps", "2"), phase("saving")),
}


@pytest.mark.parametrize("state", WAYS)
def test_pause_and_stop_in_every_phase(state: str, talk: Callable[..., Talk]) -> None:
    arguments, there = WAYS[state]
    pause_and_stop(talk(state, *arguments), there)


@pytest.mark.skipif(compilation.unavailable_reason(torch.device("cpu")) is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_pause_and_stop_during_compilation(
    ranks: str, talk: Callable[..., Talk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    one = talk(f"compiling-{ranks}", "--compile", "on", "--dropout", "0", "--ranks", ranks)
    pause_and_stop(one, phase("compiling"))
    assert not any(isinstance(event, protocol.Step) for event in one.events), "it did not wait for the compiler"


def test_stop_during_a_sample(talk: Callable[..., Talk]) -> None:
    one = talk("sampling")
    one.until(a_step)
    one.say(protocol.SampleCommand(id=1, prompt="Line", max_tokens=60_000))
    one.until(acknowledged(1))
    one.until(a_step)  # the one after which it is written
    done = one.stopped()
    assert not any(isinstance(event, protocol.Sample) and event.prompt == "Line" for event in one.events)
    one.assert_nothing_is_lost(done)


def test_stop_while_paused_in_an_evaluation(talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "memory")
    arguments, there = WAYS["evaluating"]
    one = talk("parked", *arguments)
    one.until(there)
    one.say(protocol.Pause(id=1))
    one.until(phase("paused"))
    one.assert_nothing_is_lost(one.stopped())


@pytest.mark.skipif(sys.platform == "win32", reason="a process's time zone cannot be set there")
def test_a_schedule_pauses_by_local_time_and_resume_overrides_it(
    talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    there = datetime.now().astimezone(ZoneInfo("Asia/Shanghai"))
    span = f"{there - timedelta(minutes=2):%H:%M}-{there + timedelta(minutes=30):%H:%M}"
    one = talk("scheduled", "--pause-between", f"mon-sun {span}")
    paused = one.until(phase("paused"))
    assert isinstance(paused, protocol.Phase)
    assert paused.reason == "schedule"
    assert paused.until is not None
    ends = datetime.fromtimestamp(paused.until, there.tzinfo)
    assert f"{ends:%H:%M}" == span.partition("-")[2]
    one.say(protocol.Resume(id=1))
    one.until(a_step)
    one.assert_nothing_is_lost(one.stopped())
