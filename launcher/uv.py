"""uv resolves and installs packages. It is obtained through pip once, and told the sources that pip is configured for.

Where it cannot be had or run, pip does its work (`packages.py`).
"""

import ast
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import NamedTuple

from launcher import places
from launcher.messages import message
from launcher.places import WINDOWS
from launcher.processes import clean_env, run_logged

UV_VERSION = "0.13.9"
PROGRAM = "uv.exe" if WINDOWS else "uv"


def find_uv() -> str:
    """Path of a uv that runs here, or empty. TRAINDECK_UV chooses another one, or `none`."""
    chosen = os.environ.get("TRAINDECK_UV", "")
    return own_uv() if not chosen else "" if chosen == "none" else chosen


@functools.lru_cache(maxsize=1)
def own_uv() -> str:
    """Obtain uv if needed, once: without a network each attempt takes long."""
    program = installed_uv()
    if runs(program):
        return str(program)
    folder = places.STATE_FOLDER / "uv.part"
    shutil.rmtree(str(folder), ignore_errors=True)
    if get_wheel(folder):
        extract(next(iter(folder.glob("uv-*.whl"))), program)
        shutil.rmtree(str(folder), ignore_errors=True)
    return str(program) if runs(program) else ""


def installed_uv() -> Path:
    """Path of the uv that this copy of Traindeck obtained, or would."""
    return places.STATE_FOLDER / ("uv-" + UV_VERSION) / PROGRAM


def get_wheel(folder: Path) -> bool:
    """Put the wheel of uv into the folder: that of a pack, else from the sources that pip is configured for."""
    packed = next(iter(places.PACKED_WHEELS.glob(f"uv-{UV_VERSION}-*.whl")), None)
    if packed:
        folder.mkdir(parents=True)
        shutil.copy2(str(packed), str(folder))
        return True
    options = ["--no-deps", "--only-binary=:all:", "--retries=1", "--disable-pip-version-check", "--no-input"]
    arguments = ["download", "uv==" + UV_VERSION, *options, "-d", str(folder)]
    activity = message("launcher.activity.get_uv")
    return any(run_logged([*pip, *arguments], activity, env=clean_env())[0] == 0 for pip in pip_commands())


def extract(wheel: Path, program: Path) -> None:
    """Extract the program. Other setups may do so at once: the file is replaced as a whole."""
    with zipfile.ZipFile(str(wheel)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/scripts/" + PROGRAM))
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_name(f"{PROGRAM}.{os.getpid()}.part")
        part.write_bytes(archive.read(name))
    part.chmod(0o755)
    part.replace(program)


def runs(program: Path) -> bool:
    """Whether the program starts here: a virus scanner may block it, or the processor be of another kind."""
    try:
        command = [str(program), "--version"]
        return subprocess.run(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def pip_commands() -> "Iterator[list[str]]":
    """Commands that may run pip with this Python: the installed one, which an interrupted setup may have left
    incomplete, and the wheel that comes with Python, which can be run as it is."""
    start = [sys.executable, "-I", "-X", "utf8"]
    if importlib.util.find_spec("pip"):
        yield [*start, "-m", "pip"]
    wheel = bundled_pip()
    if wheel:
        yield [*start, str(wheel / "pip")]


def bundled_pip() -> "Path | None":
    """The wheel of pip that comes with this Python, or None."""
    try:
        import ensurepip
    except ImportError:
        return None
    # Debian keeps it elsewhere.
    folders = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]
    return next((wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"), reverse=True)), None)


class Sources(NamedTuple):
    """Where packages come from, as options and environment variables of uv."""

    options: "list[str]"
    variables: "dict[str, str]"
    trusted_hosts: "list[str]"


def pip_settings(listed: str) -> "dict[str, str]":
    """The settings in the output of `pip config list`. Environment variables precede those of a command."""
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.(.+?)=(.*)$", listed, re.MULTILINE):
            found[name] = str(ast.literal_eval(value))
    return found


@functools.lru_cache(maxsize=1)
def configured_sources() -> Sources:
    """The sources that pip is configured for: uv ignores pip's settings."""
    for command in pip_commands():
        done = subprocess.run([*command, "config", "list"], env=clean_env(), stdout=PIPE, stderr=DEVNULL)
        if done.returncode == 0:
            return translate(pip_settings(done.stdout.decode("utf-8", "replace")))
    # Without pip, only the environment is known.
    named = {name[4:].lower().replace("_", "-"): text for name, text in os.environ.items() if name.startswith("PIP_")}
    return translate(named)


def translate(settings: "dict[str, str]") -> Sources:
    """The options and environment variables of uv that mean the same as pip's settings."""
    options: list[str] = []
    for name, option in (
        ("index-url", "--default-index"),
        ("extra-index-url", "--index"),
        ("find-links", "--find-links"),
        ("trusted-host", "--allow-insecure-host"),
        ("constraint", "--constraints"),
    ):
        for value in settings.get(name, "").split():
            if name == "trusted-host" or not is_missing_folder(value):
                options += [option, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options += ["--no-index"]
    variables = {}
    if settings.get("cert"):
        variables["SSL_CERT_FILE"] = settings["cert"]
    if settings.get("proxy"):
        variables.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), settings["proxy"]))
    return Sources(options, variables, settings.get("trusted-host", "").split())


def is_missing_folder(source: str) -> bool:
    """Whether it names a local folder that does not exist: pip ignores it, uv fails."""
    local = source[len("file://") :] if source.startswith("file://") else source
    return "://" not in local and not Path(local).exists()


def uv_environment(variables: "dict[str, str]") -> "dict[str, str]":
    """Environment variables for uv: without the user's own settings of uv that would change where it installs."""
    env = {name: value for name, value in clean_env().items() if name not in ("UV_SYSTEM_PYTHON", "UV_PYTHON")}
    return dict(env, UV_NO_CONFIG="1", UV_NO_PROGRESS="1", UV_SYSTEM_CERTS="1", UV_HTTP_TIMEOUT="60", **variables)
