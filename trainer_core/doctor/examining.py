"""Everything is looked at, and worded as text to paste.

Torch and the packages are imported in child processes (child.py), both at once while the rest is looked at.
No torch, no Qt.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainer_core import __version__, failures
from trainer_core.doctor.child import Child
from trainer_core.doctor.finding import Finding, note
from trainer_core.doctor.gpu import look_at_gpus, look_at_torch, nvidia_installed
from trainer_core.doctor.software import look_at_compilers, look_at_packages, look_at_python
from trainer_core.doctor.system import (
    look_at_encoding,
    look_at_folder,
    look_at_memory,
    look_at_path,
    windows_long_paths,
)
from trainer_core.machine import hardware
from trainer_core.messages import Language, what_and_do, word


def examine(root: Path) -> list[Finding]:
    """Look at everything; about 3 s, most of it torch's import. `root` is the folder of runs and caches."""
    with Child("torch") as torch_child, Child("packages") as package_child:
        machine = hardware.probe()
        findings = [
            *_guarded("Python", look_at_python),
            *_guarded("NVML", lambda: look_at_gpus(machine, nvidia_installed())),
            *_guarded("RAM", lambda: look_at_memory(machine)),
            *_guarded("disk", lambda: look_at_folder(root)),
            *_guarded("path", lambda: look_at_path(root, os.environ, windows_long_paths())),
            *_guarded("terminal", lambda: look_at_encoding(getattr(sys.stdout, "encoding", None))),
        ]
        answers, ending = torch_child.answers()
        findings += _guarded("PyTorch", lambda: look_at_torch(answers, ending, machine))
        findings += _guarded("compiler", lambda: look_at_compilers(answers))
        findings += _guarded("packages", lambda: look_at_packages(*package_child.answers()))
    return list(with_causes(findings))


def with_causes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """After each problem, what its reason means, where that is known by name."""
    for finding in findings:
        yield finding
        reason = finding.params.get("reason") if finding.level == "problem" else None
        cause = failures.of_exception(str(reason)) if reason else None
        if cause is not None and cause.code.startswith("failure."):
            yield note(cause.code, **cause.params)


def _guarded(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except Exception as error:  # noqa: BLE001 - on a broken machine anything can fail; the rest is still told
        return [note("doctor.check_failed", check=check, reason=f"{type(error).__name__}: {error}".rstrip("."))]


def render(findings: list[Finding], language: Language) -> str:
    """Aligned plain text, fit to be pasted into a report. What to do stands below each finding."""
    levels = {level: word(f"doctor.level_{level}", {}, language) for level in ("ok", "note", "problem")}
    width = max(map(len, levels.values()))
    lines = [word("doctor.title", {"version": __version__, "platform": platform.platform()}, language), ""]
    for finding in findings:
        what, do = what_and_do(finding.code, finding.params, language)
        lines.append(f"[{levels[finding.level]}]{' ' * (width - len(levels[finding.level]))} {what}")
        indent = " " * (_columns(levels["problem"]) + 3)
        lines += [indent + part for part in (do, finding.detail) if part]
    problems = sum(finding.level == "problem" for finding in findings)
    closing = (
        word("doctor.problems", {"count": problems}, language) if problems else word("doctor.all_well", {}, language)
    )
    return "\n".join([*lines, "", closing])


def _columns(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(1 + (character > "\u2e7f") for character in text)
