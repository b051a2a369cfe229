"""A kill between any two file operations of saving: what is left loads as the old state or the new one, never else.

What a kill leaves is the folder as it is at that moment. So it is copied before and after every operation, and each
copy is examined as the next process finds it. Operations are found by watching, not listed: a new one is covered.
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

from tests.core.trainer import ROOT
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import checkpoint_writer
from trainer_core.train.checkpoint_writer import CheckpointContent, RetentionPolicy

_OPERATIONS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


@dataclass
class Watch:
    """Calls `at` before each file operation below `root`, and after each piece that is written."""

    root: Path
    at: Callable[[str], None]
    on: bool = False
    unflushed: set[Path] = field(default_factory=set)

    def point(self, name: str) -> None:
        if self.on:
            self.on = False
            try:
                self.at(name)
            finally:
                self.on = True

    def below(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(str(self.root))

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: the interpreter says what is done to files. `rmtree` names them without their folder."""
        if not self.on or event not in _OPERATIONS | {"open"}:
            return
        path = arguments[0]
        relative = isinstance(path, str) and not Path(path).is_absolute() and event in ("os.remove", "os.rmdir")
        writing = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writing and (relative or self.below(path)):
            self.point(f"{event} {Path(path).name}")
        if event == "os.rename":
            self.unflushed = {Path(str(file).replace(str(path), str(arguments[1]), 1)) for file in self.unflushed}


class Watched:
    """A file whose writing is watched: in two halves, so that one can be missing."""

    def __init__(self, file: Any, path: Path, watch: Watch) -> None:
        self._file, self._path, self._watch = file, path, watch

    def write(self, content: Any) -> int:
        whole = memoryview(content).cast("B") if not isinstance(content, str) else content
        self._watch.unflushed.add(self._path)
        for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            self._file.write(part)
            self._file.flush()
            self._watch.point(f"write {self._path.name}")
        return len(whole)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_WATCHES: list[Watch] = []
sys.addaudithook(lambda event, arguments: [watch.heard(event, arguments) for watch in _WATCHES] and None)  # type: ignore[func-returns-value]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, Callable[[str], None]], Watch]]:
    """Begins to watch a folder."""

    def begin(root: Path, at: Callable[[str], None]) -> Watch:
        watch = Watch(root, at)
        opened, flushed = io.open, os.fsync
        handles: dict[int, Path] = {}

        def opening(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            made = opened(file, mode, *rest, **more)
            if not watch.below(file) or not set("wxa+") & set(mode):
                return made
            handles[made.fileno()] = Path(file)
            return Watched(made, Path(file), watch)

        def flushing(handle: int) -> None:
            watch.point("fsync")
            flushed(handle)
            watch.unflushed.discard(handles.pop(handle, Path()))
            watch.point("after fsync")

        monkeypatch.setattr(io, "open", opening)
        monkeypatch.setattr(builtins, "open", opening)
        monkeypatch.setattr(os, "fsync", flushing)
        _WATCHES.append(watch)
        return watch

    yield begin
    _WATCHES.clear()


def content(step: int, value: float) -> CheckpointContent:
    """A state that says by its values which one it is."""
    tensors = {
        "model.safetensors": {"weight": torch.full((8, 8), value), "bias": torch.full((), value)},
        "optimizer.safetensors": {"moment": torch.full((8, 8), value), "state": torch.zeros(5, dtype=torch.uint8)},
    }
    return CheckpointContent(step, "regular", None, tensors, {"config.json": b"{}", "state.json": str(value).encode()})


def values(checkpoint: Path) -> set[float]:
    """The values that everything in a checkpoint says."""
    found = {float((checkpoint / "state.json").read_text(encoding="utf-8"))}
    for name in ("model", "optimizer"):
        for key, tensor in load_file(checkpoint / f"{name}.safetensors").items():
            found |= set() if key == "state" else {float(value) for value in tensor.flatten()}
    return found


def save(run: RunDir, step: int, value: float, keep: int = 2) -> None:
    checkpoint_writer.write(run, content(step, value), RetentionPolicy(last=keep, best=0))


def first(run: RunDir) -> None:
    """Nothing is there yet."""


def second(run: RunDir) -> None:
    save(run, 1, 1.0)


def over(run: RunDir) -> None:
    save(run, 1, 1.0)
    save(run, 2, 2.0)


def rotating(run: RunDir) -> None:
    over(run)


@pytest.mark.parametrize(
    ("before", "step", "value", "allowed"),
    [
        (first, 1, 1.0, [None, 1.0]),
        (second, 2, 2.0, [1.0, 2.0]),
        (over, 2, 3.0, [2.0, 3.0]),
        (rotating, 3, 3.0, [2.0, 3.0]),
    ],
    ids=["first save", "second save", "the same step again", "rotation"],
)
def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path,
    watched: Callable[[Path, Callable[[str], None]], Watch],
    before: Callable[[RunDir], None],
    step: int,
    value: float,
    allowed: list[float | None],
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    before(run)
    kills: list[tuple[str, Path]] = []

    def kill(name: str) -> None:
        folder = tmp_path / "left" / str(len(kills))
        shutil.copytree(run.checkpoints, folder / "killed" / "checkpoints")
        kills.append((name, folder / "killed"))
        power = folder / "power"
        shutil.copytree(run.checkpoints, power / "checkpoints")
        for path in watch.unflushed:  # a machine that goes off at this moment has half of it on disk
            lost = power / "checkpoints" / path.relative_to(run.checkpoints)
            if lost.exists():
                os.truncate(lost, lost.stat().st_size // 2)
        kills.append((f"power lost at {name}", power))

    watch = watched(run.checkpoints, kill)
    watch.on = True
    save(run, step, value)
    watch.on = False
    kill("the end")
    assert len(kills) > 80, "every operation was seen"
    reached = [examine(name, RunDir(folder), allowed) for name, folder in kills]
    assert set(reached) == set(allowed), "some kills come before the new one is in its place, others after it"
    assert reached == sorted(reached, key=allowed.index), "once it is there, it stays"


def examine(name: str, run: RunDir, allowed: list[float | None]) -> float | None:
    """What the next process finds: the value that its newest checkpoint says."""
    for checkpoint in checkpoint_dir.list_checkpoints(run.checkpoints):
        assert checkpoint_dir.find_problem(checkpoint) is None, name
        assert len(values(checkpoint)) == 1, f"{name}: never parts of two"
    checkpoint_writer.remove_leftovers(run)
    newest, skipped = checkpoint_dir.latest_valid(run.checkpoints)
    assert not skipped, name
    found = values(newest).pop() if newest else None
    assert found in allowed, name
    left = {entry.name for entry in run.checkpoints.iterdir()}
    assert left == {path.name for path in checkpoint_dir.list_checkpoints(run.checkpoints)}, f"{name}: litter"
    return found


CHILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.faults.test_checkpoint_transaction import save
from trainer_core.runs.run_dir import RunDir
left = int(sys.argv[2])
def count(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove", "os.rmdir") and str(arguments[0]).startswith(sys.argv[1]):
        left -= 1
        if left == 0:
            os._exit(9)
sys.addaudithook(count)
save(RunDir(Path(sys.argv[1]).parent), 3, 3.0)
"""


@pytest.mark.parametrize("operation", [6, 14, 25])
def test_a_real_process_death_leaves_the_same(tmp_path: Path, operation: int) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    rotating(run)
    code = CHILD.format(root=str(ROOT))
    ended = subprocess.run([sys.executable, "-c", code, str(run.checkpoints), str(operation)], check=False, timeout=60)
    assert ended.returncode == 9
    assert examine("a kill", run, [2.0, 3.0]) in (2.0, 3.0)
