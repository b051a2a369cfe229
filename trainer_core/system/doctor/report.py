"""Runs all checks and formats their findings as plain text.

Torch and the other packages are imported in child processes, in parallel to the other checks. No torch, no Qt.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.cells import cell_len

from trainer_core import __version__, error_codes
from trainer_core.messages import Language, format_message, format_message_parts
from trainer_core.system import hardware
from trainer_core.system.doctor.finding import Finding, note
from trainer_core.system.doctor.gpu import check_gpus, check_torch, nvidia_driver_installed
from trainer_core.system.doctor.host import check_compilers, check_folder, check_memory, check_packages, check_python
from trainer_core.system.doctor.probe_process import run_probe


def diagnose(root: Path) -> list[Finding]:
    """Run all checks; about 3 s, mostly to import torch. `root`: the folder of runs and caches."""
    with ThreadPoolExecutor() as pool:
        torch_probe, package_probe = pool.submit(run_probe, "torch"), pool.submit(run_probe, "packages")
        machine = hardware.probe()
        findings = [
            *_run_check("Python", check_python),
            *_run_check("NVML", lambda: check_gpus(machine, nvidia_driver_installed())),
            *_run_check("RAM", lambda: check_memory(machine)),
            *_run_check("disk", lambda: check_folder(root)),
        ]
        results, ending = torch_probe.result()
        findings += _run_check("PyTorch", lambda: check_torch(results, ending, machine))
        findings += _run_check("compiler", lambda: check_compilers(results))
        findings += _run_check("packages", lambda: check_packages(*package_probe.result()))
    return list(add_causes(findings))


def add_causes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Add a note after each problem whose reason is a known failure."""
    for finding in findings:
        yield finding
        reason = finding.params.get("reason") if finding.level == "problem" else None
        cause = error_codes.classify_exception(str(reason)) if reason else None
        if cause is not None and cause.code.startswith("failure."):
            yield note(cause.code, **cause.params)


def _run_check(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - on a broken machine anything can fail; the other checks still run
        return [note("doctor.check_failed", check=name, reason=f"{type(error).__name__}: {error}".rstrip("."))]


def format_findings(findings: list[Finding], language: Language) -> str:
    """Format as aligned plain text. Actions follow their findings on separate lines."""
    levels = {level: format_message(f"doctor.level_{level}", {}, language) for level in ("ok", "note", "problem")}
    width = max(map(cell_len, levels.values()))
    indent = " " * (cell_len(levels["problem"]) + 3)
    lines = [format_message("doctor.title", {"version": __version__, "platform": platform.platform()}, language), ""]
    for finding in findings:
        description, action = format_message_parts(finding.code, finding.params, language)
        lines.append(f"[{levels[finding.level]}]{' ' * (width - cell_len(levels[finding.level]))} {description}")
        lines += [indent + part for part in (action, finding.detail) if part]
    count = sum(finding.level == "problem" for finding in findings)
    closing = "doctor.problems" if count else "doctor.all_well"
    return "\n".join([*lines, "", format_message(closing, {"count": count}, language)])
