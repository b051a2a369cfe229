"""Asynchronous checkpoints and full disks."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.core.test_bad_steps import order, poison
from tests.core.test_checkpoint import HeldError
from tests.core.test_loop import config, trainer
from tests.core.trainer import text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files
from trainer_core.train import async_checkpointer, checkpoint, checkpoint_writer
from trainer_core.train.trainer import Trainer

GIB = 1024**3


def wanted(folder: Path, **values: object) -> Config:
    small = {"batch_size": 4, "eval_steps": 0, "max_steps": 8, "cpu_threads": 1, "save_steps": 2, "perf_steps": 0}
    return config(folder, text_file(folder), **{**small, "keep_last": 9, "on_bad_step": "skip", **values})


def steps_saved(made: Trainer) -> list[int]:
    """Of the checkpoints that are whole."""
    found = checkpoint_dir.list_checkpoints(made.run_dir.checkpoints)
    assert all(checkpoint_dir.find_problem(path) is None for path in found)
    return [info.step for info in checkpoint_dir.list_infos(made.run_dir.checkpoints)]


def at_boundaries(made: Trainer, do: Callable[[int], None]) -> None:
    """`do` is called with the number of each step that is done."""
    after = made._after_step

    def then() -> None:
        after()
        do(made.state.counters.step)

    made._after_step = then  # type: ignore[method-assign]


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is done, in the thread that writes, before a checkpoint is."""
    before: list[Callable[[], None]] = []
    really = checkpoint_writer.write

    def write(*arguments: object) -> protocol.Checkpoint:
        for do in before:
            do()
        return really(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_writer, "write", write)
    return before


def test_a_background_checkpoint_holds_the_state_of_its_step(tmp_path: Path, writing: list[Callable[[], None]]) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, dropout=0.1, save_steps=3, max_steps=9))
    gone_on = threading.Event()

    def hold() -> None:
        gone_on.wait(30)

    writing.append(hold)
    tensors: dict[int, dict[str, dict[str, torch.Tensor]]] = {}

    def remember(step: int) -> None:
        live = checkpoint.build_content(made.state, {}).tensors
        tensors[step] = {file: {name: value.clone() for name, value in of.items()} for file, of in live.items()}
        if step == 5:
            assert not kept.of(protocol.Checkpoint), "that of step 3 is still being written"
            gone_on.set()

    at_boundaries(made, remember)
    made.run()
    assert steps_saved(made) == [3, 6, 9]
    for step in (3, 6):
        for file, expected in tensors[step].items():
            found = load_file(made.run_dir.checkpoints / checkpoint_dir.folder_name(step) / file)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], value) for name, value in expected.items()), (step, file)


def test_a_save_waits_for_the_previous_one(tmp_path: Path, writing: list[Callable[[], None]]) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, save_steps=1, max_steps=4))
    under_way: list[int] = []
    most = 0

    def slowly() -> None:
        nonlocal most
        under_way.append(1)
        most = max(most, len(under_way))
        time.sleep(0.1)
        under_way.pop()

    writing.append(slowly)
    made.run()
    assert most == 1
    assert [event.step for event in kept.of(protocol.Checkpoint)] == [1, 2, 3, 4]


def test_a_stopped_run_ends_with_its_checkpoint_on_disk(tmp_path: Path, writing: list[Callable[[], None]]) -> None:
    made, _ = trainer(tmp_path, wanted(tmp_path))
    writing.append(lambda: time.sleep(0.3))
    at_boundaries(made, lambda step: made.context.request_stop() if step == 4 else None)
    with pytest.raises(StopRequested):
        made.run()
    assert steps_saved(made) == [2, 4]


def test_a_rollback_waits_for_the_checkpoint_in_progress(tmp_path: Path, writing: list[Callable[[], None]]) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback"))
    poison(made, order(made)[4])
    writing.append(lambda: time.sleep(0.3))
    made.run()
    (warned,) = [event for event in kept.of(protocol.Warn) if event.code == "train.rolled_back"]
    assert warned.params["to"] == 4, "step 5 was bad while step 4 was being written"


def no_memory(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("way", ["low_memory", "background_saving", "all memory is used", "none is given"])
def test_without_memory_or_by_setting_training_waits_for_the_write(
    tmp_path: Path, writing: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    knobs = {"low_memory": way == "low_memory", "background_saving": way != "background_saving"}
    made, _ = trainer(tmp_path, wanted(tmp_path, **knobs))
    if way == "all memory is used":
        monkeypatch.setattr(async_checkpointer, "_MIN_FREE_SHARE", 1.0)
    if way == "none is given":
        monkeypatch.setattr(made.checkpointer._copies, "_allocate", no_memory)
    threads: list[str] = []
    writing.append(lambda: threads.append(threading.current_thread().name))
    made.run()
    assert threads == ["MainThread"] * 4
    assert steps_saved(made) == [2, 4, 6, 8]


def test_a_failed_write_ends_the_run_and_leaves_older_checkpoints(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    aside = tmp_path / "aside"

    def block(step: int) -> None:
        if step == 3:
            made.checkpointer.wait()
            made.run_dir.checkpoints.rename(aside)
            made.run_dir.checkpoints.write_bytes(b"a file where the folder was")

    at_boundaries(made, block)
    with pytest.raises(TraindeckError) as failed:
        made.run()
    assert failed.value.code == "disk.not_writable"
    assert [event.step for event in kept.of(protocol.Checkpoint)] == [2]
    assert checkpoint_dir.find_problem(aside / "step-00000002") is None


def test_an_unknown_write_failure_is_raised_after_an_emergency_save(
    tmp_path: Path, writing: list[Callable[[], None]]
) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    failures = iter([ArithmeticError("surprise")])

    def fail() -> None:
        for failure in failures:
            raise failure

    writing.append(fail)
    with pytest.raises(ArithmeticError, match="surprise"):
        made.run()
    assert [event.kind for event in kept.of(protocol.Checkpoint)] == ["emergency"]
    assert steps_saved(made) == [made.state.counters.step]


def test_a_file_held_open_by_another_program_skips_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    really = files.replace

    def held_open(source: Path, target: Path, seconds: float = 10.0) -> None:
        if target.name == "step-00000004":
            raise HeldError(13, "held open")
        really(source, target, seconds)

    monkeypatch.setattr(files, "replace", held_open)
    made.run()
    (warned,) = kept.of(protocol.Warn)
    assert (warned.code, warned.params["step"]) == ("checkpoint.not_saved", 4)
    assert "held open" in str(warned.params["reason"])
    assert steps_saved(made) == [2, 6, 8]


# --- a full disk -------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, the disk has no room."""
    event = threading.Event()
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000 if event.is_set() else 9 * GIB)
    return event


def waiting(kept: RecordingSink) -> list[protocol.Phase]:
    return [event for event in kept.of(protocol.Phase) if event.phase == "paused"]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def beside(do: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def full_after_step_3(made: Trainer, full: threading.Event) -> None:
    """The checkpoint of step 2 is whole by then."""

    def fill(step: int) -> None:
        if step == 3:
            made.checkpointer.join()
            full.set()

    at_boundaries(made, fill)


def test_a_run_waits_for_disk_space_and_continues(tmp_path: Path, full: threading.Event) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    full_after_step_3(made, full)

    def make_room() -> None:
        until(lambda: waiting(kept))
        full.clear()

    helper = beside(make_room)
    made.run()
    helper.join()
    (paused,) = waiting(kept)
    assert (paused.reason, paused.step) == ("disk_full", 4)
    (warned,) = kept.of(protocol.Warn)
    assert warned.code == "disk.waiting"
    assert warned.params["free_mib"] == 0
    assert warned.params["needed_mib"] >= 1
    assert steps_saved(made) == [2, 4, 6, 8]


def test_a_stop_while_waiting_for_disk_space_reports_what_is_not_saved(tmp_path: Path, full: threading.Event) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    full_after_step_3(made, full)

    def stop() -> None:
        until(lambda: waiting(kept))
        made.context.request_stop()

    helper = beside(stop)
    with pytest.raises(TraindeckError) as failed:
        made.run()
    helper.join()
    assert failed.value.code == "disk.unsaved"
    assert failed.value.exit_code == ExitCode.DISK_FULL
    assert (failed.value.params["saved"], failed.value.params["step"]) == (2, 4)
    assert steps_saved(made) == [2]


def test_a_stop_does_not_wait_for_disk_space(tmp_path: Path, full: threading.Event) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))

    full_after_step_3(made, full)
    at_boundaries(made, lambda step: made.context.request_stop() if step == 3 else None)
    with pytest.raises(TraindeckError) as failed:
        made.run()
    assert failed.value.code == "disk.unsaved"
    assert not waiting(kept)


def test_the_warning_about_a_full_disk_is_repeated(
    tmp_path: Path, full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_checkpointer, "_REMINDER_INTERVAL_S", 0.1)
    made, kept = trainer(tmp_path, wanted(tmp_path))
    full.set()

    def make_room() -> None:
        until(lambda: len(kept.of(protocol.Warn)) == 3)
        full.clear()

    helper = beside(make_room)
    made.run()
    helper.join()
    assert {event.code for event in kept.of(protocol.Warn)} == {"disk.waiting"}


def test_a_disk_that_fills_up_during_a_write_repeats_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_checkpointer, "_RETRY_S", 0.1)
    made, kept = trainer(tmp_path, wanted(tmp_path))
    flushed, failures = os.fsync, iter([True])

    def flush(handle: int) -> None:
        if threading.current_thread().name.startswith("checkpoint") and next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        flushed(handle)

    monkeypatch.setattr(os, "fsync", flush)
    made.run()
    assert [event.code for event in kept.of(protocol.Warn)] == ["disk.waiting"]
    assert [event.step for event in kept.of(protocol.Checkpoint)] == [2, 4, 6, 8]
    assert steps_saved(made) == [2, 4, 6, 8]
    assert len(list(made.run_dir.checkpoints.iterdir())) == 4, "nothing is left of the attempt"


def test_a_save_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory has ended, Python may wait for ever for a thread that is to begin: the one that writes is there."""
    made, kept = trainer(tmp_path, wanted(tmp_path))
    made.set_up()
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail(f"{self.name} was to begin"))
    made.run()
    assert [event.step for event in kept.of(protocol.Checkpoint)] == [2, 4, 6, 8]
