"""Damaged checkpoints and clock changes are detected and tolerated."""

from __future__ import annotations

import json
import random
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.faults import small
from bench.faults.small import Child, Unbroken
from tests.core.trainer import run
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir

STEPS = 8


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home")


@pytest.fixture(scope="module")
def unbroken(home: Path) -> Unbroken:
    return small.unbroken(home, STEPS, {"keep-last": 9})


def copy_of(unbroken: Unbroken, folder: Path) -> Path:
    """Another run like it, whose final checkpoint is the newest of several."""
    return Path(shutil.copytree(unbroken.run, folder))


def newest(run: Path) -> tuple[str | None, list[str]]:
    good, skipped = checkpoint_dir.latest_valid(run / "checkpoints")
    return (None if good is None else good.name), [path.name for path, _ in skipped]


def test_a_changed_byte_in_any_file_selects_the_older_checkpoint(unbroken: Unbroken, tmp_path: Path) -> None:
    made, draw = copy_of(unbroken, tmp_path / "run"), random.Random(1)
    *_, before, last = checkpoint_dir.list_checkpoints(made / "checkpoints")
    files = sorted(last.iterdir())
    assert len(files) >= 6
    for file in files:
        content = file.read_bytes()
        for place in {0, len(content) - 1, *(draw.randrange(len(content)) for _ in range(4))}:
            file.write_bytes(content[:place] + bytes([content[place] ^ draw.randint(1, 255)]) + content[place + 1 :])
            if file.name != checkpoint_dir.MANIFEST:  # a byte of its own may be one that nobody needs, as a space
                assert newest(made) == (before.name, [last.name]), (file.name, place)
            checkpoint_dir.list_infos(made / "checkpoints")
        file.write_bytes(content)
        assert newest(made) == (last.name, [])


def test_a_truncated_or_missing_file_is_detected(unbroken: Unbroken, tmp_path: Path) -> None:
    made, draw = copy_of(unbroken, tmp_path / "run"), random.Random(2)
    *_, before, last = checkpoint_dir.list_checkpoints(made / "checkpoints")
    for file in sorted(last.iterdir()):
        content = file.read_bytes()
        for length in (0, len(content) - 1, draw.randrange(len(content))):
            file.write_bytes(content[:length])
            assert newest(made) == (before.name, [last.name]), (file.name, length)
        file.unlink()
        assert newest(made) == (before.name, [last.name])
        file.write_bytes(content)


def test_a_run_skips_damaged_checkpoints_with_a_warning(unbroken: Unbroken, tmp_path: Path, home: Path) -> None:
    made = copy_of(unbroken, tmp_path / "run")
    *_, good, cut, flipped = checkpoint_dir.list_checkpoints(made / "checkpoints")
    weights = cut / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    content = bytearray((flipped / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 4
    (flipped / "model.safetensors").write_bytes(content)
    ended = run(home, "train", "--resume", str(made))
    assert ended.code == 0, ended.stderr
    assert [event.params["path"] for event in ended.of(protocol.Warn)] == [flipped.name, cut.name]
    assert checkpoint_dir.folder_name(ended.of(protocol.Hello)[0].resumed_from_step) == good.name
    assert unbroken.differences(made) == []


def test_clock_changes_do_not_affect_a_run(unbroken: Unbroken, tmp_path: Path) -> None:
    """An hour back, a day on, a year back and on again. Durations and what is left are told all the same."""
    jumps = [[10, -3600], [30, 86_400], [50, -31_536_000], [70, 31_536_000]]
    made = tmp_path / "run"
    arguments = small.arguments(unbroken.data, made, STEPS, {"keep-last": 9})
    command = [sys.executable, "-m", "bench.faults.harmed", json.dumps({"clock": jumps}), *arguments]
    child = Child(command, tmp_path)
    assert child.ended() == 0, child.last_words()
    assert unbroken.wrong_losses(child.events) == []
    assert unbroken.differences(made) == []
    assert [event.seq for event in child.events] == list(range(1, len(child.events) + 1))
    times = [event.t for event in child.events]
    assert min(later - sooner for sooner, later in pairwise(times)) < -1000, "the clock went back"
    (done,) = child.of(protocol.Done)
    assert 0 < done.seconds < 600
    assert all(0 <= event.seconds < 600 for event in child.of(protocol.Checkpoint))
    assert all(event.eta_s is None or 0 <= event.eta_s < 3600 for event in child.of(protocol.Progress))
    steps = [event.time_ms for event in child.of(protocol.Step)]
    assert all(0 <= value < 600_000 for time in steps for value in (time.data, time.forward, time.other))
    assert small.newest(made) == (STEPS, [])
