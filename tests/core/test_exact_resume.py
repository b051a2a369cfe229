"""An interrupted and resumed run equals an uninterrupted one, bit for bit, on the CPU."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.trainer import TINY, Ended, finish, run, start, text_file
from trainer_core import protocol

STEPS = 24
ARGUMENTS = ["train", *TINY, "--max-steps", str(STEPS), "--save-steps", "6", "--keep-last", "9", "--run-dir", "run"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home (x)")


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> Ended:
    data = text_file(home)
    ended = run(home, *ARGUMENTS[:-1], "whole", "--data", str(data))
    assert ended.code == 0, ended.stderr
    return ended


def read_until(process: subprocess.Popen[bytes], step: int) -> list[protocol.AnyEvent]:
    """Events up to the given step."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(protocol.decode_event(line))
        if isinstance(seen[-1], protocol.Step) and seen[-1].step >= step:
            break
    return seen


def assert_same(home: Path, name: str, whole: Ended, *parts: Ended) -> None:
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"):
        assert (home / name / last / file).read_bytes() == (home / "whole" / last / file).read_bytes(), file
    for part in parts:
        assert part.losses.items() <= whole.losses.items()
    texts = {(event.step, event.prompt): event.text for event in whole.of(protocol.Sample)}
    resumed = {(event.step, event.prompt): event.text for part in parts for event in part.of(protocol.Sample)}
    assert resumed.items() <= texts.items()
    assert parts[-1].losses[STEPS] == whole.losses[STEPS]
    evals = {event.step: event.loss for event in whole.of(protocol.Eval)}
    assert {event.step: event.loss for event in parts[-1].of(protocol.Eval)}.items() <= evals.items()


def test_a_resume_after_a_stop_is_exact(home: Path, uninterrupted: Ended) -> None:
    data = str(home / "文本 text.txt")
    process = start(home, *ARGUMENTS[:-1], "stopped", "--data", data, "--control", "stdin", stdin=subprocess.PIPE)
    before = read_until(process, 4)
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Stop(id=1)))
    process.stdin.flush()
    rest = finish(process)
    assert rest.code == 3
    assert rest.of(protocol.Ack)[0].id == 1
    assert rest.of(protocol.Done)[0].reason == "stopped"
    stopped = Ended(rest.code, before + rest.events, rest.stderr)
    stopped_at = rest.of(protocol.Done)[0].steps
    assert stopped_at < STEPS
    resumed = run(home, "train", "--resume", "--run-dir", "stopped")
    assert resumed.code == 0
    assert resumed.of(protocol.Hello)[0].resumed_from_step == stopped_at
    assert not resumed.of(protocol.Warn)
    assert_same(home, "stopped", uninterrupted, stopped, resumed)


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl+C cannot be sent to one child there")
def test_a_resume_after_ctrl_c_is_exact(home: Path, uninterrupted: Ended) -> None:
    process = start(home, *ARGUMENTS[:-1], "interrupted", "--data", str(home / "文本 text.txt"))
    read_until(process, 7)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 3
    resumed = run(home, "train", "--resume", "interrupted")
    assert resumed.code == 0
    assert_same(home, "interrupted", uninterrupted, resumed)


@pytest.mark.parametrize("moment", [8, 19])
def test_a_resume_after_a_kill_is_exact(home: Path, uninterrupted: Ended, moment: int) -> None:
    name = f"killed-{moment}"
    process = start(home, *ARGUMENTS[:-1], name, "--data", str(home / "文本 text.txt"))
    told = [event.step for event in read_until(process, moment) if isinstance(event, protocol.Checkpoint)]
    time.sleep(random.Random(moment).random() * 0.05)  # within a step, or within a save
    process.kill()
    process.communicate()
    resumed = run(home, "train", "--resume", name)
    assert resumed.code == 0, resumed.stderr
    resumed_from = resumed.of(protocol.Hello)[0].resumed_from_step
    assert resumed_from >= max([0, *told]), "what was said to be saved is there"
    assert resumed_from >= moment // 6 * 6 - 6, "the one before it, while the newest was being written"
    assert_same(home, name, uninterrupted, resumed)
