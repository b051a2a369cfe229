"""Checks of Python, the packages and the compilers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import struct
import sys
from collections.abc import Mapping
from typing import Final

from trainer_core.system.doctor.finding import SETUP_COMMAND, WINDOWS, Finding, ProbeResults, note, ok, problem

# Each torch requires one series of Triton: 2.13 requires 3.7 (github.com/triton-lang/triton-windows, issue 42).
_WINDOWS_TRITON: Final = '"triton-windows>=3.7,<3.8"'


def check_python() -> list[Finding]:
    version, bits = platform.python_version(), struct.calcsize("P") * 8
    found = [ok("doctor.python", version=version, bits=bits, path=sys.executable)]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.append(problem("doctor.python_version", version=version, command=SETUP_COMMAND))
    if bits != 64:
        found.append(problem("doctor.python_bits", bits=bits, command=SETUP_COMMAND))
    if sys.prefix == sys.base_prefix:
        found.append(note("doctor.no_venv", launcher=SETUP_COMMAND.partition(" ")[0]))
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
    compiler = find_compiler(os.environ)
    package = "Visual Studio Build Tools (C++)" if WINDOWS else "g++"
    found = [ok("doctor.compiler", path=compiler) if compiler else note("doctor.no_compiler", package=package)]
    if any(result.get("gpus") for result in results):
        if importlib.util.find_spec("triton"):
            version = importlib.metadata.version("triton-windows" if WINDOWS else "triton")
            found.append(ok("doctor.triton", version=version))
        else:
            package = _WINDOWS_TRITON if WINDOWS else "triton"
            found.append(note("doctor.no_triton", package=package, python=sys.executable))
    return found


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """The C++ compiler that torch uses: `CXX`, else the first known one on the path."""
    names = ("cl", "clang-cl", "g++", "clang++") if WINDOWS else ("g++", "clang++", "c++")
    return next(filter(None, map(shutil.which, filter(None, (environ.get("CXX", ""), *names)))), None)
