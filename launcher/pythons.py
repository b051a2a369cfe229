"""Finds a supported Python."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher.failures import SetupError
from launcher.messages import log, message
from launcher.places import WINDOWS
from launcher.processes import clean_env

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)

PROBE_SCRIPT = """
import sys, struct
try:
    import venv, ensurepip
    missing = ""
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
    if match.group(4):
        return "", message("launcher.reason.python_without_venv", version=name)
    return match.group(5).strip(), None


def python_candidates() -> "Iterator[list[str]]":
    """Commands that may start a supported Python, most likely first, as argument lists."""
    yield [sys.executable]
    versions = [f"3.{minor}" for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1)]
    if WINDOWS:
        launcher = shutil.which("py") or str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "py.exe")
        if Path(launcher).exists():
            for version in versions:
                yield [launcher, "-" + version]
        for place in windows_python_paths(versions):
            yield [str(place)]
    names = [f"python{version}" for version in versions] + ["python3", "python"]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    if not WINDOWS:
        folders += [Path("/usr/local/bin"), Path("/opt/homebrew/bin"), Path("/usr/bin")]
        for pattern in (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin", "*conda3/bin"):
            folders += sorted(Path.home().glob(pattern), reverse=True)
    for name in names:
        for folder in folders:
            path = folder / (name + ".exe" if WINDOWS else name)
            if path.exists():
                yield [str(path)]


def windows_python_paths(versions: "list[str]") -> "Iterator[Path]":
    """Pythons of the registry (PEP 514) and of the usual folders of installers."""
    if sys.platform == "win32":
        import winreg

        for hive in (winreg.HKEY_CURRENT_USER, winreg.HKEY_LOCAL_MACHINE):
            for key in (f"SOFTWARE\\Python\\PythonCore\\{version}\\InstallPath" for version in versions):
                with contextlib.suppress(OSError):
                    yield Path(winreg.QueryValue(hive, key)) / "python.exe"
    for variable, pattern in (
        ("LOCALAPPDATA", "Programs/Python/Python3*/python.exe"),
        ("PROGRAMFILES", "Python3*/python.exe"),
        ("SYSTEMDRIVE", "/Python3*/python.exe"),
        ("USERPROFILE", ".pyenv/pyenv-win/versions/3*/python.exe"),
        ("APPDATA", "uv/python/cpython-3*/python.exe"),
        ("USERPROFILE", "*conda3/python.exe"),
    ):
        folder = os.environ.get(variable)
        if folder:
            root = Path(folder + "\\") if variable == "SYSTEMDRIVE" else Path(folder)
            yield from sorted(root.glob(pattern.lstrip("/")), reverse=True)


def find_python(chosen: str = "") -> str:
    """Executable of a supported Python. Raises SetupError with the reason for each candidate if there is none."""
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
        if reason is None:
            log(f"Python: {executable}. Rejected: {rejected}")
            return executable
        rejected[shown] = reason
    found = [message("launcher.rejected_python", path=shown, reason=reason) for shown, reason in rejected.items()]
    if chosen:
        raise SetupError("\n".join([message("launcher.chosen_python"), *found, message("launcher.advice.python")]))
    advice = message("launcher.advice.install_windows" if WINDOWS else "launcher.advice.install_posix")
    raise SetupError("\n".join([message("launcher.no_python"), *found, advice]))
