"""A Python to make an environment with."""

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
from launcher.places import WINDOWS
from launcher.processes import own_env
from launcher.words import log

OLDEST, NEWEST = (3, 11), (3, 13)

PROBE = """
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


def try_python(command: "list[str]") -> "tuple[str, str]":
    """Run a candidate: (its base executable, "") if it fits, ("", why not) otherwise."""
    try:
        output = subprocess.run(
            [*command, "-c", PROBE],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            env=dict(own_env(), PYTHONUTF8="1"),
            timeout=30,
        ).stdout.decode("utf-8", "replace")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"does not run ({type(error).__name__})"
    match = re.search(r"TRAINDECK\|(\d+)\|(\d+)\|(\d+)\|([^|]*)\|(.+)", output)
    if not match:
        return "", "does not run (no answer)"
    version = (int(match.group(1)), int(match.group(2)))
    name = "Python {}.{}".format(*version)
    if version < OLDEST:
        return "", f"{name} is too old"
    if version > NEWEST:
        return "", f"{name} is too new"
    if match.group(3) != "64":
        return "", f"{name} is a {match.group(3)}-bit build; PyTorch needs 64 bits"
    if match.group(4) == "free-threaded":
        return "", f"{name} is a free-threaded build, for which not every package has wheels"
    if match.group(4):
        return "", f"{name} has no venv module; on Debian and Ubuntu: sudo apt install python3-venv"
    return match.group(5).strip(), ""


def python_candidates() -> "Iterator[list[str]]":
    """Commands that may start a fitting Python, the likeliest first; executable and arguments kept apart."""
    yield [sys.executable]
    versions = [f"3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    if WINDOWS:
        launcher = shutil.which("py") or str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "py.exe")
        if Path(launcher).exists():
            for version in versions:
                yield [launcher, "-" + version]
        for place in windows_places(versions):
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


def windows_places(versions: "list[str]") -> "Iterator[Path]":
    """Where Windows keeps Pythons: the registry (PEP 514) and the installers' usual folders."""
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
    """The executable of a fitting Python; raises with every candidate's reason if there is none."""
    rejected: dict[str, str] = {}
    for command in [[chosen]] if chosen else python_candidates():
        shown = " ".join(command)
        if shown in rejected:
            continue
        # The placeholder in WindowsApps is not Python: it prints nothing or opens the Store.
        if "\\windowsapps\\" in command[0].lower() and command[0] != sys.executable and not chosen:
            rejected[shown] = "the Microsoft Store placeholder"
            continue
        executable, reason = try_python(command)
        if executable:
            log(f"Python: {executable} (passed over: {rejected})")
            return executable
        rejected[shown] = reason
    found = "\n".join(f"  {shown}: {reason}" for shown, reason in rejected.items())
    if chosen:
        raise SetupError(f"The chosen Python cannot be used:\n{found}\nChoose another: setup --python PATH (or auto)")
    get = (
        "Install Python 3.12 (64 bit) from https://www.python.org/downloads/windows/ and start again."
        if WINDOWS
        else "Install one, for example: sudo apt install python3 python3-venv   (or pyenv install 3.12)"
    )
    raise SetupError(f"Traindeck needs Python 3.11, 3.12 or 3.13, and none was found:\n{found}\n{get}")
