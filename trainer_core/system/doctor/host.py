"""Checks of processor, memory and folders."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path

import psutil

from trainer_core.messages import Value
from trainer_core.system import files
from trainer_core.system.doctor.finding import GIB, WINDOWS, Finding, format_gib, note, ok, problem
from trainer_core.system.hardware import MachineInfo


def check_memory(machine: MachineInfo, page_file: int | None = None) -> list[Finding]:
    """Processor, RAM and, on Windows, the page file. `page_file`: its bytes, in tests."""
    sizes: dict[str, Value] = {
        "total_gib": format_gib(machine.ram_total),
        "free_gib": format_gib(machine.ram_available),
    }
    low = machine.ram_total < 7.5 * GIB or machine.ram_available < 2 * GIB
    found = [
        ok("doctor.cpu", name=machine.cpu_name, cores=machine.cpu_cores, threads=machine.cpu_threads),
        note("doctor.ram_low", **sizes) if low else ok("doctor.ram", **sizes),
    ]
    if WINDOWS and page_file is None:
        with contextlib.suppress(OSError, RuntimeError):  # performance counters may be disabled
            page_file = psutil.swap_memory().total
    if page_file is not None:
        small = page_file < 4 * GIB
        found.append((note if small else ok)("doctor.page_file" + "_small" * small, gib=format_gib(page_file)))
    return found


def check_folder(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Write access, free space, and synchronization by a cloud service."""
    existing = root
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    trial = existing / f".traindeck-{secrets.token_hex(4)}.tmp"
    try:
        trial.write_bytes(b"x")
        files.retry_sharing_violation(trial.unlink)
    except OSError as error:
        return [problem("doctor.not_writable", detail=str(error), path=str(root), reason=error.strerror or "?")]
    free = files.free_bytes(root)
    params: dict[str, Value] = {"path": str(root), "free_gib": format_gib(free)}
    if free < 10 * GIB:
        found = [Finding("problem" if free < 2 * GIB else "note", "doctor.disk_low", params)]
    else:
        found = [ok("doctor.disk", **params)]
    if service := sync_service(root, environ):
        found.append(note("doctor.synced_folder", path=str(root), service=service))
    return found


def sync_service(root: Path, environ: Mapping[str, str]) -> str | None:
    """The cloud service that synchronizes a folder, by its environment variables or the folder's usual name."""
    for name in ("OneDrive", "OneDriveCommercial", "OneDriveConsumer"):
        if environ.get(name) and root.is_relative_to(Path(environ[name])):
            return "OneDrive"
    services = ("OneDrive", "Dropbox", "Google Drive", "iCloudDrive", "Nutstore", "坚果云", "WPS云盘")
    parts = [part.lower() for part in root.parts]
    return next((name for name in services if any(part.startswith(name.lower()) for part in parts)), None)
