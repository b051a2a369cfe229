"""A kill or power loss between any two file operations of a save leaves the old or the new checkpoint.

The folder is copied before and after each file operation of a save, which an audit hook reports. Each copy is examined
like the folder that a killed process leaves.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.core.trainer_process import ROOT
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import checkpoint_writer
from trainer_core.train.checkpoint_writer import CheckpointContent, RetentionPolicy

TRACED_OPERATIONS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


@dataclass
class FileTracer:
    """Calls `callback` before each file operation below `root`, and after each partial write."""

    root: Path
    callback: Callable[[str], None]
    enabled: bool = False
    unflushed: set[Path] = field(default_factory=set)

    def report(self, name: str) -> None:
        if self.enabled:
            self.enabled = False
            try:
                self.callback(name)
            finally:
                self.enabled = True

    def is_traced(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(str(self.root))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook of the interpreter. `rmtree` passes file names without their folder."""
        if not self.enabled or event not in TRACED_OPERATIONS | {"open"}:
            return
        path = arguments[0]
        is_relative = isinstance(path, str) and not Path(path).is_absolute() and event in ("os.remove", "os.rmdir")
        is_write = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_write and (is_relative or self.is_traced(path)):
            self.report(f"{event} {Path(path).name}")
        if event == "os.rename":
            self.unflushed = {Path(str(file).replace(str(path), str(arguments[1]), 1)) for file in self.unflushed}


class TracedFile:
    """A file whose content is written in two halves, each of which is reported."""

    def __init__(self, file: Any, path: Path, tracer: FileTracer) -> None:
        self._file, self._path, self._tracer = file, path, tracer

    def write(self, content: Any) -> int:
        data = memoryview(content).cast("B") if not isinstance(content, str) else content
        self._tracer.unflushed.add(self._path)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._file.write(part)
            self._file.flush()
            self._tracer.report(f"write {self._path.name}")
        return len(data)

    def __enter__(self) -> TracedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


TRACERS: list[FileTracer] = []
sys.addaudithook(lambda event, arguments: [tracer.audit(event, arguments) for tracer in TRACERS] and None)  # type: ignore[func-returns-value]


@pytest.fixture
def trace_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, Callable[[str], None]], FileTracer]]:
    """Starts to trace a folder; ends after the test."""

    def start_tracing(root: Path, callback: Callable[[str], None]) -> FileTracer:
        tracer = FileTracer(root, callback)
        open_file, fsync = io.open, os.fsync
        paths: dict[int, Path] = {}

        def open_traced(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            opened = open_file(file, mode, *args, **kwargs)
            if not tracer.is_traced(file) or not set("wxa+") & set(mode):
                return opened
            paths[opened.fileno()] = Path(file)
            return TracedFile(opened, Path(file), tracer)

        def fsync_traced(handle: int) -> None:
            tracer.report("fsync")
            fsync(handle)
            tracer.unflushed.discard(paths.pop(handle, Path()))
            tracer.report("after fsync")

        monkeypatch.setattr(io, "open", open_traced)
        monkeypatch.setattr(builtins, "open", open_traced)
        monkeypatch.setattr(os, "fsync", fsync_traced)
        TRACERS.append(tracer)
        return tracer

    yield start_tracing
    TRACERS.clear()


def content(step: int, value: float) -> CheckpointContent:
    """A state in which all values are `value`."""
    tensors = {
        "model.safetensors": {"weight": torch.full((8, 8), value), "bias": torch.full((), value)},
        "optimizer.safetensors": {"moment": torch.full((8, 8), value), "state": torch.zeros(5, dtype=torch.uint8)},
    }
    return CheckpointContent(step, "regular", None, tensors, {"config.json": b"{}", "state.json": str(value).encode()})


def stored_values(checkpoint: Path) -> set[float]:
    """All values in the files of a checkpoint."""
    values = {float((checkpoint / "state.json").read_text(encoding="utf-8"))}
    for name in ("model", "optimizer"):
        for key, tensor in load_file(checkpoint / f"{name}.safetensors").items():
            values |= set() if key == "state" else {float(value) for value in tensor.flatten()}
    return values


def save(run: RunDir, step: int, value: float, keep: int = 2) -> None:
    checkpoint_writer.write(run, content(step, value), RetentionPolicy(last=keep, best=0))


def no_checkpoint(run: RunDir) -> None:
    """An empty run directory."""


def one_checkpoint(run: RunDir) -> None:
    save(run, 1, 1.0)


def two_checkpoints(run: RunDir) -> None:
    save(run, 1, 1.0)
    save(run, 2, 2.0)


@pytest.mark.parametrize(
    ("prepare", "step", "value", "allowed"),
    [
        (no_checkpoint, 1, 1.0, [None, 1.0]),
        (one_checkpoint, 2, 2.0, [1.0, 2.0]),
        (two_checkpoints, 2, 3.0, [2.0, 3.0]),
        (two_checkpoints, 3, 3.0, [2.0, 3.0]),
    ],
    ids=["first save", "second save", "the same step again", "rotation"],
)
def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path,
    trace_files: Callable[[Path, Callable[[str], None]], FileTracer],
    prepare: Callable[[RunDir], None],
    step: int,
    value: float,
    allowed: list[float | None],
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    prepare(run)
    copies: list[tuple[str, Path]] = []

    def copy_state(name: str) -> None:
        folder = tmp_path / "copies" / str(len(copies))
        shutil.copytree(run.checkpoints, folder / "killed" / "checkpoints")
        copies.append((name, folder / "killed"))
        power_loss = folder / "power"
        shutil.copytree(run.checkpoints, power_loss / "checkpoints")
        for path in tracer.unflushed:  # after a power loss, half of the data may be on disk
            incomplete = power_loss / "checkpoints" / path.relative_to(run.checkpoints)
            if incomplete.exists():
                os.truncate(incomplete, incomplete.stat().st_size // 2)
        copies.append((f"power loss at {name}", power_loss))

    tracer = trace_files(run.checkpoints, copy_state)
    tracer.enabled = True
    save(run, step, value)
    tracer.enabled = False
    copy_state("the end")
    assert len(copies) > 80, "operations are missing"
    results = [examine_copy(name, RunDir(folder), allowed) for name, folder in copies]
    assert set(results) == set(allowed), "kills before and after the new checkpoint is in place"
    assert results == sorted(results, key=allowed.index), "the new checkpoint remains"


def examine_copy(name: str, run: RunDir, allowed: list[float | None]) -> float | None:
    """Check a copy like a new process. Returns the value of its newest checkpoint."""
    for checkpoint in checkpoint_dir.list_checkpoints(run.checkpoints):
        assert checkpoint_dir.find_problem(checkpoint) is None, name
        assert len(stored_values(checkpoint)) == 1, f"{name}: mixed checkpoints"
    checkpoint_writer.remove_leftovers(run)
    newest, skipped = checkpoint_dir.latest_valid(run.checkpoints)
    assert not skipped, name
    value = stored_values(newest).pop() if newest else None
    assert value in allowed, name
    remaining = {entry.name for entry in run.checkpoints.iterdir()}
    assert remaining == {path.name for path in checkpoint_dir.list_checkpoints(run.checkpoints)}, (
        f"{name}: leftover files"
    )
    return value


KILLED_SAVE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.faults.test_checkpoint_transaction import save
from trainer_core.runs.run_dir import RunDir
remaining = int(sys.argv[2])
def count(event, arguments):
    global remaining
    if event in ("open", "os.rename", "os.remove", "os.rmdir") and str(arguments[0]).startswith(sys.argv[1]):
        remaining -= 1
        if remaining == 0:
            os._exit(9)
sys.addaudithook(count)
save(RunDir(Path(sys.argv[1]).parent), 3, 3.0)
"""


@pytest.mark.parametrize("operation", [6, 14, 25])
def test_a_killed_process_leaves_the_old_or_the_new_checkpoint(tmp_path: Path, operation: int) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    two_checkpoints(run)
    code = KILLED_SAVE.format(root=str(ROOT))
    process = subprocess.run(
        [sys.executable, "-c", code, str(run.checkpoints), str(operation)], check=False, timeout=60
    )
    assert process.returncode == 9
    assert examine_copy("a kill", run, [2.0, 3.0]) in (2.0, 3.0)
