"""Checks of Python, packages, compilers, processor, memory and folders."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Final

import psutil

from trainer_core.messages import Value
from trainer_core.system import files
from trainer_core.system.doctor.finding import (
    GIB,
    SETUP_COMMAND,
    WINDOWS,
    Finding,
    ProbeResults,
    format_gib,
    note,
    ok,
    problem,
)
from trainer_core.system.hardware import MachineInfo
from trainer_core.system.program_files import IS_INSTALLED, PROGRAM

# Each torch requires one series of Triton: 2.13 requires 3.7 (github.com/triton-lang/triton-windows, issue 42).
_WINDOWS_TRITON: Final = '"triton-windows>=3.7,<3.8"'


def check_python() -> list[Finding]:
    version, bits = platform.python_version(), struct.calcsize("P") * 8
    found = [ok("doctor.python", version=version, bits=bits, path=sys.executable)]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.append(problem("doctor.python_version", version=version, command=SETUP_COMMAND))
    if bits != 64:
        found.append(problem("doctor.python_bits", bits=bits, command=SETUP_COMMAND))
    if sys.prefix == sys.base_prefix and not IS_INSTALLED:
        found.append(note("doctor.no_venv", launcher=PROGRAM))
    return found


def check_packages(results: ProbeResults, ending: str) -> list[Finding]:
    """Package versions, and a problem for each package that fails, from the results of the probe process."""
    states = {result["package"]: result for result in results if "package" in result}
    versions = [f"{name} {state['version']}" for name, state in states.items() if "version" in state]
    found = [ok("doctor.packages", versions=", ".join(versions))] if versions else []
    for name, state in states.items():
        if "version" not in state:
            reason = state.get("error") or ending
            found.append(problem("doctor.package_broken", name=name, reason=reason, command=SETUP_COMMAND))
    if not states:
        found.append(note("doctor.check_failed", check="packages", reason=ending))
    return found


def check_compilers(results: ProbeResults) -> list[Finding]:
    """Compilers for torch.compile, which is optional."""
    compiler = find_compiler()
    package = "Visual Studio Build Tools (C++)" if WINDOWS else "g++"
    found = [ok("doctor.compiler", path=compiler) if compiler else note("doctor.no_compiler", package=package)]
    if not any(result.get("gpus") for result in results):
        return found
    if importlib.util.find_spec("triton"):
        version = importlib.metadata.version("triton-windows" if WINDOWS else "triton")
        return [*found, ok("doctor.triton", version=version)]
    package = _WINDOWS_TRITON if WINDOWS else "triton"
    return [*found, note("doctor.no_triton", package=package, python=sys.executable)]


def find_compiler() -> str | None:
    """The C++ compiler that torch uses: `CXX`, else the first known one on the path."""
    names = ("cl", "clang-cl", "g++", "clang++") if WINDOWS else ("g++", "clang++", "c++")
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX", ""), *names)))), None)


def check_memory(machine: MachineInfo, page_file: int | None = None) -> list[Finding]:
    """Processor, RAM and, on Windows, the page file. `page_file`: its bytes, in tests."""
    sizes = {"total_gib": format_gib(machine.ram_total), "free_gib": format_gib(machine.ram_available)}
    low = machine.ram_total < 7.5 * GIB or machine.ram_available < 2 * GIB
    cpu = ok("doctor.cpu", name=machine.cpu_name, cores=machine.cpu_cores, threads=machine.cpu_threads)
    found = [cpu, note("doctor.ram_low", **sizes) if low else ok("doctor.ram", **sizes)]
    if WINDOWS and page_file is None:
        with contextlib.suppress(OSError, RuntimeError):  # performance counters may be disabled
            page_file = psutil.swap_memory().total
    if page_file is not None:
        small = page_file < 4 * GIB
        found.append((note if small else ok)("doctor.page_file" + "_small" * small, gib=format_gib(page_file)))
    return found


def check_folder(root: Path) -> list[Finding]:
    """Write access, free space, and synchronization by a cloud service."""
    existing = root
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return [problem("doctor.not_writable", detail=str(error), path=str(root), reason=error.strerror or "?")]
    free = files.free_bytes(root)
    params: dict[str, Value] = {"path": str(root), "free_gib": format_gib(free)}
    if free < 10 * GIB:
        found = [Finding("problem" if free < 2 * GIB else "note", "doctor.disk_low", params)]
    else:
        found = [ok("doctor.disk", **params)]
    if service := sync_service(root):
        found.append(note("doctor.synced_folder", path=str(root), service=service))
    return found


def sync_service(root: Path) -> str | None:
    """The cloud service that synchronizes a folder, by the folder's usual name."""
    services = ("OneDrive", "Dropbox", "Google Drive", "iCloudDrive", "Nutstore", "坚果云", "WPS云盘")
    parts = [part.lower() for part in root.parts]
    return next((name for name in services if any(part.startswith(name.lower()) for part in parts)), None)
