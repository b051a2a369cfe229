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

from tests.core.test_checkpoint import SharingViolationError
from tests.core.trainer_process import text_file
from tests.core.training import build_trainer, call_after_steps, corrupt_gradients, first_epoch, tiny_config
from tests.recording_sink import RecordingSink
from tests.waiting import wait_until
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files
from trainer_core.train import async_checkpointer, checkpoint, checkpoint_writer
from trainer_core.train.trainer import Trainer

GIB = 1024**3


def config(folder: Path, **values: object) -> Config:
    small = {"batch_size": 4, "eval_steps": 0, "max_steps": 8, "cpu_threads": 1, "save_steps": 2, "perf_steps": 0}
    return tiny_config(folder, text_file(folder), **{**small, "keep_last": 9, "on_bad_step": "skip", **values})


def saved_steps(trainer: Trainer) -> list[int]:
    """Steps of all checkpoints, each of which must be valid."""
    checkpoints = checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)
    assert all(checkpoint_dir.find_problem(path) is None for path in checkpoints)
    return [info.step for info in checkpoint_dir.list_infos(trainer.run_dir.checkpoints)]


@pytest.fixture
def before_write(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Callbacks that the writer thread calls before it writes a checkpoint."""
    callbacks: list[Callable[[], None]] = []
    write_checkpoint = checkpoint_writer.write

    def write(*arguments: object) -> protocol.Checkpoint:
        for callback in callbacks:
            callback()
        return write_checkpoint(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_writer, "write", write)
    return callbacks


def test_a_background_checkpoint_holds_the_state_of_its_step(
    tmp_path: Path, before_write: list[Callable[[], None]]
) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, dropout=0.1, save_steps=3, max_steps=9))
    training_continued = threading.Event()

    def wait_for_step_5() -> None:
        training_continued.wait(30)

    before_write.append(wait_for_step_5)
    tensors: dict[int, dict[str, dict[str, torch.Tensor]]] = {}

    def copy_state(step: int) -> None:
        live = checkpoint.build_content(trainer.state, {}).tensors
        tensors[step] = {
            file: {name: value.clone() for name, value in file_tensors.items()} for file, file_tensors in live.items()
        }
        if step == 5:
            assert not sink.events_of(protocol.Checkpoint), "the checkpoint of step 3 is still being written"
            training_continued.set()

    call_after_steps(trainer, copy_state)
    trainer.run()
    assert saved_steps(trainer) == [3, 6, 9]
    for step in (3, 6):
        for file, expected in tensors[step].items():
            saved = load_file(trainer.run_dir.checkpoints / checkpoint_dir.folder_name(step) / file)
            assert saved.keys() == expected.keys()
            assert all(torch.equal(saved[name], value) for name, value in expected.items()), (step, file)


def test_a_save_waits_for_the_previous_one(tmp_path: Path, before_write: list[Callable[[], None]]) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, save_steps=1, max_steps=4))
    active: list[int] = []
    max_active = 0

    def count_active() -> None:
        nonlocal max_active
        active.append(1)
        max_active = max(max_active, len(active))
        time.sleep(0.1)
        active.pop()

    before_write.append(count_active)
    trainer.run()
    assert max_active == 1
    assert [event.step for event in sink.events_of(protocol.Checkpoint)] == [1, 2, 3, 4]


def test_a_stopped_run_ends_with_its_checkpoint_on_disk(tmp_path: Path, before_write: list[Callable[[], None]]) -> None:
    trainer, _ = build_trainer(tmp_path, config(tmp_path))
    before_write.append(lambda: time.sleep(0.3))
    call_after_steps(trainer, lambda step: trainer.context.request_stop() if step == 4 else None)
    with pytest.raises(StopRequested):
        trainer.run()
    assert saved_steps(trainer) == [2, 4]


def test_a_rollback_waits_for_the_checkpoint_in_progress(
    tmp_path: Path, before_write: list[Callable[[], None]]
) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback"))
    corrupt_gradients(trainer, first_epoch(trainer)[4])
    before_write.append(lambda: time.sleep(0.3))
    trainer.run()
    (warning,) = [event for event in sink.events_of(protocol.Warn) if event.code == "train.rolled_back"]
    assert warning.params["to"] == 4, "step 5 was bad while step 4 was being written"


def fail_to_allocate(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("cause", ["low_memory", "background_saving", "memory in use", "allocation fails"])
def test_training_waits_for_the_write_without_memory_or_by_setting(
    tmp_path: Path, before_write: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    knobs = {"low_memory": cause == "low_memory", "background_saving": cause != "background_saving"}
    trainer, _ = build_trainer(tmp_path, config(tmp_path, **knobs))
    if cause == "memory in use":
        monkeypatch.setattr(async_checkpointer, "_MIN_FREE_SHARE", 1.0)
    if cause == "allocation fails":
        monkeypatch.setattr(trainer.checkpointer._copies, "_allocate", fail_to_allocate)
    threads: list[str] = []
    before_write.append(lambda: threads.append(threading.current_thread().name))
    trainer.run()
    assert threads == ["MainThread"] * 4
    assert saved_steps(trainer) == [2, 4, 6, 8]


def test_a_failed_write_ends_the_run_and_leaves_older_checkpoints(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    moved = tmp_path / "moved"

    def replace_folder(step: int) -> None:
        if step == 3:
            trainer.checkpointer.wait()
            trainer.run_dir.checkpoints.rename(moved)
            trainer.run_dir.checkpoints.write_bytes(b"a file where the folder was")

    call_after_steps(trainer, replace_folder)
    with pytest.raises(TraindeckError) as error:
        trainer.run()
    assert error.value.code == "disk.not_writable"
    assert [event.step for event in sink.events_of(protocol.Checkpoint)] == [2]
    assert checkpoint_dir.find_problem(moved / "step-00000002") is None


def test_an_unknown_write_failure_is_raised_after_an_emergency_save(
    tmp_path: Path, before_write: list[Callable[[], None]]
) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    failures = iter([ArithmeticError("test failure")])

    def fail() -> None:
        for failure in failures:
            raise failure

    before_write.append(fail)
    with pytest.raises(ArithmeticError, match="test failure"):
        trainer.run()
    assert [event.kind for event in sink.events_of(protocol.Checkpoint)] == ["emergency"]
    assert saved_steps(trainer) == [trainer.state.counters.step]


def test_a_file_held_open_by_another_program_skips_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    replace = files.replace

    def held_open(source: Path, target: Path, seconds: float = 10.0) -> None:
        if target.name == "step-00000004":
            raise SharingViolationError(13, "held open")
        replace(source, target, seconds)

    monkeypatch.setattr(files, "replace", held_open)
    trainer.run()
    (warning,) = sink.events_of(protocol.Warn)
    assert (warning.code, warning.params["step"]) == ("checkpoint.not_saved", 4)
    assert "held open" in str(warning.params["reason"])
    assert saved_steps(trainer) == [2, 6, 8]


# --- a full disk -------------------------------------------------------------------------------------------


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While this event is set, the disk is full."""
    event = threading.Event()
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000 if event.is_set() else 9 * GIB)
    return event


def disk_full_pauses(sink: RecordingSink) -> list[protocol.Phase]:
    """Pauses of a run that waits for disk space."""
    return [event for event in sink.events_of(protocol.Phase) if event.phase == "paused"]


def start_thread(do: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def fill_disk_after_step_3(trainer: Trainer, disk_full: threading.Event) -> None:
    """Fill the disk once the checkpoint of step 2 is written."""

    def fill(step: int) -> None:
        if step == 3:
            trainer.checkpointer.join()
            disk_full.set()

    call_after_steps(trainer, fill)


def test_a_run_waits_for_disk_space_and_continues(tmp_path: Path, disk_full: threading.Event) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    fill_disk_after_step_3(trainer, disk_full)

    def free_space() -> None:
        wait_until(lambda: disk_full_pauses(sink))
        disk_full.clear()

    thread = start_thread(free_space)
    trainer.run()
    thread.join()
    (paused,) = disk_full_pauses(sink)
    assert (paused.reason, paused.step) == ("disk_full", 4)
    (warning,) = sink.events_of(protocol.Warn)
    assert warning.code == "disk.waiting"
    assert warning.params["free_mib"] == 0
    assert warning.params["needed_mib"] >= 1
    assert saved_steps(trainer) == [2, 4, 6, 8]


def test_a_stop_while_waiting_for_disk_space_reports_the_unsaved_steps(
    tmp_path: Path, disk_full: threading.Event
) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    fill_disk_after_step_3(trainer, disk_full)

    def stop() -> None:
        wait_until(lambda: disk_full_pauses(sink))
        trainer.context.request_stop()

    thread = start_thread(stop)
    with pytest.raises(TraindeckError) as error:
        trainer.run()
    thread.join()
    assert error.value.code == "disk.unsaved"
    assert error.value.exit_code == ExitCode.DISK_FULL
    assert (error.value.params["saved"], error.value.params["step"]) == (2, 4)
    assert saved_steps(trainer) == [2]


def test_a_stop_does_not_wait_for_disk_space(tmp_path: Path, disk_full: threading.Event) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path))

    fill_disk_after_step_3(trainer, disk_full)
    call_after_steps(trainer, lambda step: trainer.context.request_stop() if step == 3 else None)
    with pytest.raises(TraindeckError) as error:
        trainer.run()
    assert error.value.code == "disk.unsaved"
    assert not disk_full_pauses(sink)


def test_the_warning_about_a_full_disk_is_repeated(
    tmp_path: Path, disk_full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_checkpointer, "_REMINDER_INTERVAL_S", 0.1)
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    disk_full.set()

    def free_space() -> None:
        wait_until(lambda: len(sink.events_of(protocol.Warn)) == 3)
        disk_full.clear()

    thread = start_thread(free_space)
    trainer.run()
    thread.join()
    assert {event.code for event in sink.events_of(protocol.Warn)} == {"disk.waiting"}


def test_a_disk_that_fills_up_during_a_write_repeats_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_checkpointer, "_RETRY_S", 0.1)
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    fsync, failures = os.fsync, iter([True])

    def fail_once(handle: int) -> None:
        if threading.current_thread().name.startswith("checkpoint") and next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_once)
    trainer.run()
    assert [event.code for event in sink.events_of(protocol.Warn)] == ["disk.waiting"]
    assert [event.step for event in sink.events_of(protocol.Checkpoint)] == [2, 4, 6, 8]
    assert saved_steps(trainer) == [2, 4, 6, 8]
    assert len(list(trainer.run_dir.checkpoints.iterdir())) == 4, "the failed attempt leaves no files"


def test_a_save_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, `Thread.start` can block forever, so the writer thread is started in advance."""
    trainer, sink = build_trainer(tmp_path, config(tmp_path))
    trainer.set_up()
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail(f"{self.name} was started"))
    trainer.run()
    assert [event.step for event in sink.events_of(protocol.Checkpoint)] == [2, 4, 6, 8]
