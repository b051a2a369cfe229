"""Damaged checkpoints and clock changes are detected and tolerated."""

from __future__ import annotations

import json
import random
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.faults.reference_run import TIMEOUT_S, ReferenceRun, newest_checkpoint
from tests.core.trainer_process import run
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir

STEPS = 8


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home")


@pytest.fixture(scope="module")
def reference(home: Path) -> ReferenceRun:
    return ReferenceRun(home, STEPS, keep_last=9).train()


def copy_run(reference: ReferenceRun, folder: Path) -> Path:
    """Copy a run with several checkpoints."""
    return Path(shutil.copytree(reference.path, folder))


def newest_valid(run: Path) -> tuple[str | None, list[str]]:
    good, skipped = checkpoint_dir.latest_valid(run / "checkpoints")
    return (None if good is None else good.name), [path.name for path, _ in skipped]


def test_a_changed_byte_in_any_file_selects_the_older_checkpoint(reference: ReferenceRun, tmp_path: Path) -> None:
    copy, generator = copy_run(reference, tmp_path / "run"), random.Random(1)
    *_, previous, last = checkpoint_dir.list_checkpoints(copy / "checkpoints")
    files = sorted(last.iterdir())
    assert len(files) >= 6
    for file in files:
        content = file.read_bytes()
        for position in {0, len(content) - 1, *(generator.randrange(len(content)) for _ in range(4))}:
            file.write_bytes(
                content[:position] + bytes([content[position] ^ generator.randint(1, 255)]) + content[position + 1 :]
            )
            # A changed byte of the manifest may be insignificant, like a space.
            if file.name != checkpoint_dir.MANIFEST:
                assert newest_valid(copy) == (previous.name, [last.name]), (file.name, position)
            checkpoint_dir.list_infos(copy / "checkpoints")
        file.write_bytes(content)
        assert newest_valid(copy) == (last.name, [])


def test_a_truncated_or_missing_file_is_detected(reference: ReferenceRun, tmp_path: Path) -> None:
    copy, generator = copy_run(reference, tmp_path / "run"), random.Random(2)
    *_, previous, last = checkpoint_dir.list_checkpoints(copy / "checkpoints")
    for file in sorted(last.iterdir()):
        content = file.read_bytes()
        for length in (0, len(content) - 1, generator.randrange(len(content))):
            file.write_bytes(content[:length])
            assert newest_valid(copy) == (previous.name, [last.name]), (file.name, length)
        file.unlink()
        assert newest_valid(copy) == (previous.name, [last.name])
        file.write_bytes(content)


def test_a_run_skips_damaged_checkpoints_with_a_warning(reference: ReferenceRun, tmp_path: Path, home: Path) -> None:
    copy = copy_run(reference, tmp_path / "run")
    *_, good, truncated, corrupted = checkpoint_dir.list_checkpoints(copy / "checkpoints")
    weights = truncated / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    content = bytearray((corrupted / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 4
    (corrupted / "model.safetensors").write_bytes(content)
    result = run(home, "train", "--resume", str(copy))
    assert result.code == 0, result.stderr
    assert [event.params["path"] for event in result.events_of(protocol.Warn)] == [corrupted.name, truncated.name]
    assert checkpoint_dir.folder_name(result.events_of(protocol.Hello)[0].resumed_from_step) == good.name
    assert reference.file_problems(copy) == []


CLOCK_CHANGES = [[10, -3600], [30, 86_400], [50, -31_536_000], [70, 31_536_000]]
"""Number of a read of the system clock, and the change in seconds: -1 h, +1 day, -1 year, +1 year."""
TRAINER_WITH_CLOCK_CHANGES = f"""
import itertools, runpy, time
real_time, reads = time.time, itertools.count(1)

def changed_time():
    number = next(reads)
    return real_time() + sum(seconds for first, seconds in {CLOCK_CHANGES} if number >= first)

time.time = changed_time
runpy.run_module("trainer_core", run_name="__main__", alter_sys=True)
"""


def test_clock_changes_do_not_affect_a_run(reference: ReferenceRun, tmp_path: Path) -> None:
    """Durations and remaining times stay correct."""
    run_dir = tmp_path / "run"
    child = reference.start(run_dir, tmp_path, [sys.executable, "-c", TRAINER_WITH_CLOCK_CHANGES])
    child.wait(TIMEOUT_S)
    assert reference.end_problems(child, run_dir) == []
    events = [protocol.decode_event(json.dumps(event).encode()) for event in child.events]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    times = [event.t for event in events]
    assert min(later - earlier for earlier, later in pairwise(times)) < -1000, "the clock changes had no effect"
    (done,) = (event for event in events if isinstance(event, protocol.Done))
    assert 0 < done.seconds < 600
    for event in events:
        if isinstance(event, protocol.Checkpoint):
            assert 0 <= event.seconds < 600
        elif isinstance(event, protocol.Progress):
            assert event.eta_s is None or 0 <= event.eta_s < 3600
        elif isinstance(event, protocol.Step):
            time_ms = event.time_ms
            assert all(0 <= value < 600_000 for value in (time_ms.data, time_ms.forward, time_ms.other))
    assert newest_checkpoint(run_dir) == (STEPS, [])
