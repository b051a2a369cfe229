"""Python, the packages, and what compiling a model needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import struct
import sys
from collections.abc import Mapping

from trainer_core.doctor.finding import WINDOWS, Answers, Finding, launcher, note, ok, problem

# Each torch goes with one series of Triton; 2.13 with 3.7 (github.com/triton-lang/triton-windows, issue 42).
_TRITON_OF_WINDOWS = '"triton-windows>=3.7,<3.8"'


def look_at_python() -> list[Finding]:
    version, bits = platform.python_version(), struct.calcsize("P") * 8
    command = f"{launcher()} setup"
    found = [ok("doctor.python", version=version, bits=bits, path=sys.executable)]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.append(problem("doctor.python_version", version=version, command=command))
    if bits != 64:
        found.append(problem("doctor.python_bits", bits=bits, command=command))
    if sys.prefix == sys.base_prefix:
        found.append(note("doctor.no_venv", launcher=launcher()))
    return found


def look_at_packages(answers: Answers, ending: str) -> list[Finding]:
    """From the answers of the child: one line of versions, and a problem for each package that fails."""
    command = f"{launcher()} setup"
    states = {answer["package"]: answer for answer in answers if "package" in answer}
    versions = [f"{name} {state['version']}" for name, state in states.items() if "version" in state]
    found = [ok("doctor.packages", versions=", ".join(versions))] if versions else []
    for name, state in states.items():
        if "version" not in state:
            reason = state.get("error") or ending
            found.append(problem("doctor.package_broken", name=name, reason=reason, command=command))
    if not states:
        found.append(note("doctor.check_failed", check="packages", reason=ending))
    return found


def look_at_compilers(answers: Answers) -> list[Finding]:
    """What torch.compile would need. Nothing of it is needed for training."""
    compiler = find_compiler(os.environ)
    package = "Visual Studio Build Tools (C++)" if WINDOWS else "g++"
    found = [
        ok("doctor.compiler", path=compiler) if compiler else note("doctor.no_compiler", package=package),
    ]
    if any(answer.get("gpus") for answer in answers):
        if importlib.util.find_spec("triton"):
            found.append(ok("doctor.triton", version=_version_of("triton", "triton-windows")))
        else:
            package = _TRITON_OF_WINDOWS if WINDOWS else "triton"
            found.append(note("doctor.no_triton", package=package, python=sys.executable))
    return found


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """The C++ compiler that torch would use: `CXX`, else the usual ones on the path."""
    names = ("cl", "clang-cl", "g++", "clang++") if WINDOWS else ("g++", "clang++", "c++")
    return next(filter(None, map(shutil.which, filter(None, (environ.get("CXX", ""), *names)))), None)


def _version_of(*packages: str) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"
