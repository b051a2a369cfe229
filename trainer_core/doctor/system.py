"""Memory, disk, folders, the terminal."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from trainer_core import files
from trainer_core.doctor.finding import GIB, WINDOWS, Finding, gib, launcher, note, ok, problem
from trainer_core.machine.hardware import Machine
from trainer_core.messages import Value


def look_at_memory(machine: Machine, page_file: int | None = None) -> list[Finding]:
    """Processor, RAM, and on Windows (or where `page_file` gives its bytes) the page file."""
    sizes: dict[str, Value] = {"total_gib": gib(machine.ram_total), "free_gib": gib(machine.ram_available)}
    low = machine.ram_total < 7.5 * GIB or machine.ram_available < 2 * GIB
    found = [
        ok("doctor.cpu", name=machine.cpu_name, cores=machine.cpu_cores, threads=machine.cpu_threads),
        note("doctor.ram_low", **sizes) if low else ok("doctor.ram", **sizes),
    ]
    if WINDOWS and page_file is None:
        with contextlib.suppress(OSError, RuntimeError):  # where performance counters are turned off
            page_file = psutil.swap_memory().total
    if page_file is not None:
        small = page_file < 4 * GIB
        found.append((note if small else ok)("doctor.page_file" + "_small" * small, gib=gib(page_file)))
    return found


def look_at_folder(root: Path) -> list[Finding]:
    """Whether runs can be written, and how much fits."""
    existing = root
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    trial = existing / f".traindeck-{secrets.token_hex(4)}.tmp"
    try:
        trial.write_bytes(b"x")
        files.retry_sharing(trial.unlink)
    except OSError as error:
        return [problem("doctor.not_writable", detail=str(error), path=str(root), reason=error.strerror or "?")]
    free = files.free_bytes(root)
    where: dict[str, Value] = {"path": str(root), "free_gib": gib(free)}
    if free < 2 * GIB:
        return [Finding("problem", "doctor.disk_low", where)]
    return [note("doctor.disk_low", **where) if free < 10 * GIB else ok("doctor.disk", **where)]


_ROOM_BELOW: Final = 170  # the longest path of ours below the home folder, with a long run name


def look_at_path(root: Path, environ: Mapping[str, str], long_paths: bool) -> list[Finding]:
    """Folders that make trouble on Windows: too long, or synchronised."""
    found: list[Finding] = []
    if not long_paths and len(str(root)) > 260 - _ROOM_BELOW:
        found.append(note("doctor.long_paths", path=str(root), length=len(str(root))))
    if service := synchronised_by(root, environ):
        found.append(note("doctor.synced_folder", path=str(root), service=service))
    return found


def synchronised_by(root: Path, environ: Mapping[str, str]) -> str | None:
    """The service that synchronises a folder, by its environment variables or the folder's usual name."""
    for name in ("OneDrive", "OneDriveCommercial", "OneDriveConsumer"):
        if environ.get(name) and root.is_relative_to(Path(environ[name])):
            return "OneDrive"
    services = ("OneDrive", "Dropbox", "Google Drive", "iCloudDrive", "Nutstore", "坚果云", "WPS云盘")
    parts = [part.lower() for part in root.parts]
    return next((name for name in services if any(part.startswith(name.lower()) for part in parts)), None)


def windows_long_paths() -> bool:
    """Whether paths may be longer than 260 characters; always so elsewhere than on Windows."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:
            return False
    else:
        return True


def look_at_encoding(encoding: str | None) -> list[Finding]:
    """Whether the terminal shows Chinese and symbols. None: there is no terminal."""
    if encoding is None:
        return []
    try:
        "数据 → é ✓".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return [note("doctor.encoding_poor", encoding=encoding, launcher=launcher())]
    return [ok("doctor.encoding", encoding=encoding)]
