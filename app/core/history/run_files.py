"""Run folders: size and checkpoints, both read in slices, configurations, and rules for names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer_core.config import Knob, knobs
from trainer_core.runs import checkpoint_dir, file_locks, run_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir

NameProblem = Literal["", "empty", "impossible", "taken", "running", "gone"]


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """`saved_at`: seconds since the epoch."""

    info: CheckpointInfo
    saved_at: float


def iter_folder_size(folder: Path) -> Iterator[int]:
    """Running total of the bytes of all files in a folder, one value per entry. Links are not followed."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:  # deleted in the meantime, or no permission
            continue
        with entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                yield total


def iter_checkpoints(run: Path) -> Iterator[SavedCheckpoint]:
    """Checkpoints with a readable manifest, newest first."""
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
    """Whether a process is training the run."""
    owner = file_locks.read_owner(RunDir(run).lock)
    return owner is not None and owner.alive


def name_problem(run: Path, name: str) -> NameProblem:
    """Why a run cannot be renamed to `name`; empty: it can. The rules of Windows apply on every system."""
    if not name:
        return "empty"
    if run_dir.safe_name(name) != name:
        return "impossible"
    if not run.is_dir():
        return "gone"
    if is_running(run):
        return "running"
    target = run.with_name(name)
    # On case-insensitive file systems, a change of case yields the same folder.
    return "taken" if target.exists() and not target.samefile(run) else ""


def unique_name(preferred: str, taken: Container[str] = (), root: Path | None = None) -> str:
    """`preferred` as a folder name, with a number if it is in `taken` or exists in the folder `root`."""
    base = run_dir.safe_name(preferred) or "run"
    name, number = base, 2
    while name in taken or (root is not None and (root / name).exists()):
        name, number = f"{base}-{number}", number + 1
    return name


def new_branch_path(run: Path, step: int) -> Path:
    """Unused path for a new run that starts from a checkpoint of `run`."""
    stem = run.name[:60].rstrip(" .")
    return run.with_name(unique_name(f"{stem}-from-{step}", root=run.parent))


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[Knob, list[Any]]]:
    """Settings that differ and their values, in the order of `Config`. A missing setting has its default."""
    found = []
    for knob in knobs().values():
        values = [config.get(knob.name, knob.default) for config in configs]
        if any(isinstance(value, bool) != isinstance(values[0], bool) or value != values[0] for value in values):
            found.append((knob, values))  # True differs from 1
    return found
