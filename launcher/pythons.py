"""Finds a supported Python, or installs one with uv."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import NamedTuple

from launcher import places
from launcher.messages import SetupError, log, message, tool_error
from launcher.places import WINDOWS
from launcher.processes import clean_env, run_logged
from launcher.uv import find_uv, uv_env

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)

PROBE_SCRIPT = """
import json, struct, sys, sysconfig
try:
    import ensurepip, venv
    has_venv = True
except ImportError:
    has_venv = False
base = getattr(sys, "_base_executable", None) or sys.executable
is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([sys.version_info[:2], struct.calcsize("P") * 8, is_free_threaded, has_venv, base]))
"""


class Interpreter(NamedTuple):
    """A Python that was tried. `executable`: its base interpreter; `reason`: why it cannot be used, or empty."""

    executable: str
    version: str
    reason: str


def try_python(path: str) -> Interpreter:
    """Run a Python to see whether it is supported."""
    command, env = [path, "-c", PROBE_SCRIPT], clean_env()
    try:
        output = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=env, timeout=30).stdout
        version, bits, is_free_threaded, has_venv, base = json.loads(output.decode("ascii").splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        return Interpreter("", "", message("launcher.reason.python_not_running", error=type(error).__name__))
    name, reason = "{}.{}".format(*version), ""
    if not OLDEST_PYTHON <= tuple(version) <= NEWEST_PYTHON or bits != 64 or is_free_threaded:
        shown = name + "t" * is_free_threaded
        reason = message("launcher.reason.python_unsupported", version=shown, bits=bits)
    elif not has_venv and not find_uv():  # uv needs no venv
        reason = message("launcher.reason.python_without_venv", version=name)
    return Interpreter(base, name, reason)


def python_candidates() -> "Iterator[str]":
    """Paths of what may be a supported Python, most likely first."""
    chosen = places.read_json(Path(sys.prefix) / "traindeck.json").get("chosen_python")
    if not chosen:
        yield sys.executable
    for path in pythons_of_uv() or pythons_on_path():
        # Of the Microsoft Store: a placeholder, which opens it, or a Python that writes to other folders.
        if "windowsapps" not in path.lower():
            yield path
    if chosen:  # another choice has made the environment that runs this
        yield sys.executable


def pythons_on_path() -> "list[str]":
    versions = [f"python3.{minor}" for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1)]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    paths = [folder / (name + ".exe" * WINDOWS) for name in [*versions, "python3", "python"] for folder in folders]
    return [str(path) for path in paths if path.exists()]


def pythons_of_uv() -> "list[str]":
    """Pythons that uv finds: on PATH, in the registry of Windows, those that it installed here. Empty without uv."""
    command = [find_uv(), "python", "list", "--only-installed", "--no-python-downloads", "--output-format", "json"]
    try:
        done = subprocess.run(command, env=uv_env(), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, timeout=60)
        return [entry["path"] for entry in json.loads(done.stdout.decode("utf-8")) if entry.get("path")]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return []


def find_python(chosen: str = "", version: str = "") -> str:
    """Executable of a supported Python, of this version (`3.12`) if one is given.

    uv installs one where none is found. Raises SetupError with the reason for each candidate.
    """
    found, rejected = select_python([chosen] if chosen else python_candidates(), version)
    if found:
        return found
    if chosen:
        raise SetupError("\n".join([message("launcher.chosen_python"), *rejected, message("launcher.advice.python")]))
    advice = message("launcher.advice.install_windows" if WINDOWS else "launcher.advice.install_posix")
    failure = "\n".join([message("launcher.no_python"), *rejected, advice])
    if not find_uv():
        raise SetupError(failure)
    # For nobody but this copy of Traindeck. A mirror: UV_PYTHON_INSTALL_MIRROR.
    command = [find_uv(), "python", "install", "--no-bin", "--no-registry", version or "3.12"]
    code, output = run_logged(command, message("launcher.activity.get_python"), env=uv_env())
    found = "" if code else select_python(pythons_of_uv(), version)[0]
    if not found:
        raise tool_error("\n".join([failure, message("launcher.python_not_installed")]), output)
    return found


def select_python(candidates: "Iterable[str]", version: str) -> "tuple[str, list[str]]":
    """Return the first usable Python, or empty, and the others before it with the reasons."""
    rejected: dict[str, str] = {}
    for path in candidates:
        if path in rejected:
            continue
        python = try_python(path)
        reason = python.reason
        if not reason and version not in ("", python.version):
            reason = message("launcher.reason.other_python")
        if not reason:
            log(f"Python: {python.executable}. Rejected: {rejected}")
            return python.executable, []
        rejected[path] = reason
    found = [message("launcher.rejected_python", path=path, reason=reason) for path, reason in rejected.items()]
    return "", found
