"""Texts about the execution of a run: fast paths, devices, bad steps."""

from __future__ import annotations

from collections.abc import Sequence

from app.texts import current_language, tr
from trainer_core import performance_texts
from trainer_core.protocol import FastPath


def format_execution(paths: Sequence[FastPath], compile_s: float | None) -> str:
    """Return the fast paths in use and the compile time in one line, or an empty string."""
    used = [format_fast_path(path) for path in paths if path.used]
    parts = []
    if used:
        parts.append(tr("performance.fast_paths_in_use", paths=tr("performance.list_separator").join(used)))
    if compile_s is not None:
        parts.append(format_compile_time(compile_s))
    return "  ·  ".join(parts)


def format_compile_time(seconds: float) -> str:
    return tr("performance.compile_time", seconds=f"{seconds:.1f}")


def format_device(name: str) -> str:
    """Translate the trainer's name of a device."""
    return performance_texts.format_device(name, current_language())


def format_fast_path(path: FastPath) -> str:
    """Return name, variant and speedup."""
    name, choice = performance_texts.fast_path_parts(path, current_language())
    speedup = "" if path.speedup is None else performance_texts.format_speedup(path.speedup)
    if not choice:
        return f"{name} {speedup}".strip()
    return tr("performance.name_choice_speedup", name=name, choice=choice, speedup=speedup).strip()


def format_bad_step_action(name: str) -> str:
    return {
        "skipped": tr("performance.skipped"),
        "rolled_back": tr("performance.rolled_back"),
        "stopped": tr("performance.training_stopped"),
    }.get(name, name)
