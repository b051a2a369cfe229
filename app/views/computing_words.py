"""How a run computes, in the current language: fast paths in one line, and what became of bad steps."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from app.views import words
from trainer_core import engine_words
from trainer_core.protocol import FastPath


def summary(paths: Sequence[FastPath], compile_s: float | None) -> str:
    """One calm line. Empty where the trainer did not say."""
    used = [short(path) for path in paths if path.used]
    parts = []
    if used:
        comma = QCoreApplication.translate("Computing", ", ")
        parts.append(QCoreApplication.translate("Computing", "Computes with: {paths}").format(paths=comma.join(used)))
    if compile_s is not None:
        parts.append(compiled(compile_s))
    return "  ·  ".join(parts)


def compiled(seconds: float) -> str:
    """What compiling took."""
    return QCoreApplication.translate("Computing", "compiling took {seconds} s").format(seconds=f"{seconds:.1f}")


def device(told: str) -> str:
    """A device as the trainer names it, in our language."""
    return engine_words.device(told, words.language())


def short(path: FastPath) -> str:
    """Its name, which of several ways, and what it brings."""
    name, choice = engine_words.path_parts(path, words.language())
    gain = "" if path.gain is None else engine_words.gain(path.gain)
    if not choice:
        return f"{name} {gain}".strip()
    text = QCoreApplication.translate("Computing", "{name} ({choice}) {gain}")
    return text.format(name=name, choice=choice, gain=gain).strip()


def action(name: str) -> str:
    """What was done about a bad step."""
    return {
        "skipped": QCoreApplication.translate("Computing", "left out"),
        "rolled_back": QCoreApplication.translate("Computing", "back to the last good checkpoint"),
        "stopped": QCoreApplication.translate("Computing", "training stopped"),
    }.get(name, name)
