"""Finds a supported Python, or installs one with uv."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher import places
from launcher.failures import SetupError, tool_error
from launcher.messages import log, message
from launcher.places import WINDOWS
from launcher.processes import clean_env, run_logged
from launcher.uv import configured_sources, find_uv, uv_environment

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
PRIVATE_PYTHONS = "python"  # folder below that of the state

PROBE_SCRIPT = """
import sys, struct
missing = ""
try:
    import venv, ensurepip
except ImportError:
    missing = "no-venv"
try:
    import sysconfig
    if sysconfig.get_config_var("Py_GIL_DISABLED"): missing = "free-threaded"
except ImportError:
    pass
base = getattr(sys, "_base_executable", None) or sys.executable
out = [str(sys.version_info[0]), str(sys.version_info[1]), str(struct.calcsize("P") * 8), missing, base]
getattr(sys.stdout, "buffer", sys.stdout).write(("TRAINDECK|" + "|".join(out)).encode("utf-8"))
"""


def try_python(command: "list[str]") -> "tuple[str, str | None]":
    """Run a candidate. Returns (base executable, None) if it is supported, else ("", reason)."""
    try:
        output = subprocess.run(
            [*command, "-c", PROBE_SCRIPT],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            env=dict(clean_env(), PYTHONUTF8="1"),
            timeout=30,
        ).stdout.decode("utf-8", "replace")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", message("launcher.reason.python_not_running", error=type(error).__name__)
    match = re.search(r"TRAINDECK\|(\d+)\|(\d+)\|(\d+)\|([^|]*)\|(.+)", output)
    if not match:
        return "", message("launcher.reason.python_no_answer")
    version = (int(match.group(1)), int(match.group(2)))
    name = "{}.{}".format(*version)
    if version < OLDEST_PYTHON:
        return "", message("launcher.reason.python_too_old", version=name)
    if version > NEWEST_PYTHON:
        return "", message("launcher.reason.python_too_new", version=name)
    if match.group(3) != "64":
        return "", message("launcher.reason.python_not_64_bit", version=name, bits=match.group(3))
    if match.group(4) == "free-threaded":
        return "", message("launcher.reason.python_free_threaded", version=name)
    if match.group(4) and not find_uv():  # uv needs no venv
        return "", message("launcher.reason.python_without_venv", version=name)
    return match.group(5).strip(), None


def private_pythons() -> "list[Path]":
    """Pythons that uv installed for this copy of Traindeck."""
    program = "python.exe" if WINDOWS else "bin/python3"
    return sorted((places.STATE_FOLDER / PRIVATE_PYTHONS).glob("cpython-3*/" + program), reverse=True)


def python_candidates() -> "Iterator[list[str]]":
    """Commands that may start a supported Python, most likely first, as argument lists."""
    yield [sys.executable]
    found = [*private_pythons(), *pythons_on_path(), *pythons_of_uv()]
    for pattern in (
        ".pyenv/versions/3.1*/bin/python3",
        ".pyenv/pyenv-win/versions/3.1*/python.exe",
        "AppData/Local/Programs/Python/Python31*/python.exe",
        "*conda3/bin/python3",
        "*conda3/python.exe",
    ):
        found += sorted(Path.home().glob(pattern), reverse=True)
    for path in found:
        yield [str(path)]


def pythons_on_path() -> "list[Path]":
    versions = [f"python3.{minor}" for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1)]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    paths = [folder / (name + ".exe" * WINDOWS) for name in [*versions, "python3", "python"] for folder in folders]
    return [path for path in paths if path.exists()]


def pythons_of_uv() -> "list[Path]":
    """Pythons that uv knows: in the registry of Windows, of the Microsoft Store, its own."""
    uv = find_uv()
    command = [uv, "python", "list", "--only-installed", "--no-python-downloads", "--output-format", "json"]
    try:
        done = subprocess.run(command, env=uv_environment({}), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, timeout=60)
        return [Path(entry["path"]) for entry in json.loads(done.stdout.decode("utf-8")) if entry.get("path")]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return []


def find_python(chosen: str = "", version: str = "") -> str:
    """Executable of a supported Python, of this version (`3.12`) if one is given.

    Installs one where none is found. Raises SetupError with the reason for each candidate.
    """
    rejected: dict[str, str] = {}
    for command in [[chosen]] if chosen else python_candidates():
        shown = " ".join(command)
        if shown in rejected:
            continue
        # The placeholder in WindowsApps is not Python: it opens the Store.
        if "\\windowsapps\\" in command[0].lower() and command[0] != sys.executable and not chosen:
            rejected[shown] = message("launcher.reason.store_placeholder")
            continue
        executable, reason = try_python(command)
        if reason is None and version and not is_version(executable, version):
            reason = message("launcher.reason.other_python")
        if reason is None:
            log(f"Python: {executable}. Rejected: {rejected}")
            return executable
        rejected[shown] = reason
    found = [message("launcher.rejected_python", path=shown, reason=reason) for shown, reason in rejected.items()]
    if chosen:
        raise SetupError("\n".join([message("launcher.chosen_python"), *found, message("launcher.advice.python")]))
    if find_uv():
        return install_python(version or "3.12", found)
    advice = message("launcher.advice.install_windows" if WINDOWS else "launcher.advice.install_posix")
    raise SetupError("\n".join([message("launcher.no_python"), *found, advice]))


def is_version(executable: str, version: str) -> bool:
    command = [executable, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL).stdout.decode().strip() == version


def install_python(version: str, rejected: "list[str]") -> str:
    """Let uv install a Python below Traindeck's folder, for nobody else. A mirror: UV_PYTHON_INSTALL_MIRROR."""
    folder = places.STATE_FOLDER / PRIVATE_PYTHONS
    command = [find_uv(), "python", "install", "--no-bin", "--no-registry", "--install-dir", str(folder)]
    env = uv_environment(configured_sources().variables)
    code, output = run_logged([*command, version], message("launcher.activity.get_python"), env=env)
    for private in private_pythons() if not code else []:
        executable, reason = try_python([str(private)])
        if reason is None and is_version(executable, version):
            return executable
    advice = message("launcher.advice.install_windows" if WINDOWS else "launcher.advice.install_posix")
    failed = tool_error(message("launcher.python_not_installed"), output)
    raise SetupError("\n".join([message("launcher.no_python"), *rejected, str(failed), advice]), failed.code)
