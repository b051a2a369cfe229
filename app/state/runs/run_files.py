"""A run's folder as a whole: its size and checkpoints in slices, its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir

NameProblem = Literal["", "empty", "impossible", "taken", "running", "gone"]


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of a run, and when it was written (seconds since the epoch)."""

    info: CheckpointInfo
    when: float


def sizes(folder: Path) -> Iterator[int]:
    """Bytes of all files below a folder, as far as they are counted; a step for each entry. Links are not followed."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:  # it vanished, or may not be entered
            continue
        with entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                yield total


def checkpoints(run: Path) -> Iterator[SavedCheckpoint]:
    """The checkpoints whose manifest can be read, newest first."""
    try:
        folders = checkpoint_dir.list_checkpoints(RunDir(run).checkpoints)
    except OSError:
        return
    for folder in reversed(folders):
        info = checkpoint_dir.read_info(folder)
        if info is not None:
            with contextlib.suppress(OSError):
                yield SavedCheckpoint(info, (folder / checkpoint_dir.MANIFEST).stat().st_mtime)


def is_running(run: Path) -> bool:
    """Whether a living process holds the run."""
    owner = run_dir.read_owner(RunDir(run))
    return owner is not None and owner.alive


def problem_of_name(run: Path, name: str) -> NameProblem:
    """Why a run's folder cannot be called `name`; empty where it can. Windows' rules hold everywhere: runs travel."""
    if not name:
        return "empty"
    if run_dir.safe_name(name) != name:
        return "impossible"
    if not run.is_dir():
        return "gone"
    if is_running(run):
        return "running"
    target = run.with_name(name)
    # Where capitals do not matter, a name that differs only in them is the run's own.
    return "taken" if target.exists() and not target.samefile(run) else ""


def branch_path(run: Path, step: int) -> Path:
    """A free folder beside a run, for a new one that goes on from one of its checkpoints."""
    root, stem = run.parent, run.name[:60].rstrip(" .")
    base = run_dir.safe_name(f"{stem}-from-{step}")
    path, number = root / base, 2
    while path.exists():
        path, number = root / f"{base}-{number}", number + 1
    return path
