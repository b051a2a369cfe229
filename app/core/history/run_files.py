"""Run folders: rules for names, and differences between configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.config import Knob, knobs
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir


def is_running(run: Path) -> bool:
    """Whether a process is training the run."""
    owner = file_locks.read_owner(RunDir(run).lock)
    return owner is not None and owner.alive


def name_problem(run: Path, name: str) -> str:
    """Key of the text why a run cannot be renamed to `name`; empty: it can. The rules of Windows apply on every
    system.
    """
    if not name:
        return "runs.name_required"
    if run_dir.safe_name(name) != name:
        return "runs.name_invalid"
    if not run.is_dir():
        return "runs.not_found"
    if is_running(run):
        return "runs.rename_active"
    target = run.with_name(name)
    # On case-insensitive file systems, a change of case yields the same folder.
    return "runs.name_exists" if target.exists() and not target.samefile(run) else ""


def new_branch_path(run: Path, step: int) -> Path:
    """Unused path for a new run that starts from a checkpoint of `run`."""
    stem = run.name[:60].rstrip(" .")
    return run.with_name(run_dir.unique_name(f"{stem}-from-{step}", root=run.parent))


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[Knob, list[Any]]]:
    """Settings that differ and their values, in the order of `Config`. A missing setting has its default."""
    found = []
    for knob in knobs().values():
        values = [config.get(knob.name, knob.default) for config in configs]
        if any(isinstance(value, bool) != isinstance(values[0], bool) or value != values[0] for value in values):
            found.append((knob, values))  # True differs from 1
    return found
