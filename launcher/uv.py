"""uv finds Pythons, resolves and installs packages. pip obtains it once, and its settings apply.

Where it cannot be had or run, pip does its work (`packages.py`).
"""

import ast
import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher import places
from launcher.messages import message
from launcher.places import WINDOWS
from launcher.processes import clean_env, run_logged

UV_VERSION = "0.13.9"
PRIVATE_PYTHONS = "python"  # folder below that of the state


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
    options = ["--target", str(program.parents[1]), "--upgrade", "--no-deps", "--only-binary=:all:", "--retries=1"]
    options += packed_options()
    activity = message("launcher.activity.get_uv")
    for pip in pip_commands():
        code, _ = run_logged([*pip, "install", *options, "uv==" + UV_VERSION], activity, env=pip_env())
        if not code and runs(program):
            return str(program)
    return ""


def installed_uv() -> Path:
    """Path of the uv that this copy of Traindeck obtained, or would."""
    return places.STATE_FOLDER / ("uv-" + UV_VERSION) / "bin" / ("uv.exe" if WINDOWS else "uv")


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


def pip_env() -> "dict[str, str]":
    return dict(clean_env(), PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off")


def uv_env() -> "dict[str, str]":
    """Environment variables for uv: without the user's own settings of uv that would change where it installs."""
    configured_sources()
    env = {name: value for name, value in clean_env().items() if name not in ("UV_SYSTEM_PYTHON", "UV_PYTHON")}
    own = {"UV_PYTHON_INSTALL_DIR": str(places.STATE_FOLDER / PRIVATE_PYTHONS), "UV_NO_CONFIG": "1"}
    return dict(env, UV_NO_PROGRESS="1", UV_SYSTEM_CERTS="1", UV_HTTP_TIMEOUT="60", **own)


def packed_options() -> "list[str]":
    """In a copy that came with its packages (`pack`): those are the only source, as options of pip and uv."""
    return ["--no-index", "--find-links", str(places.PACKED_WHEELS)] if places.PACKED_WHEELS.is_dir() else []


@functools.lru_cache(maxsize=1)
def configured_sources() -> "list[str]":
    """The sources that pip is configured for, as options of uv, which ignores pip's settings. Sets variables for the
    proxy and certificates."""
    # Without pip, only the environment is known.
    settings = {
        name[4:].lower().replace("_", "-"): text for name, text in os.environ.items() if name.startswith("PIP_")
    }
    for command in pip_commands():
        done = subprocess.run([*command, "config", "list"], env=clean_env(), stdout=PIPE, stderr=DEVNULL)
        if done.returncode == 0:
            settings = pip_settings(done.stdout.decode("utf-8", "replace"))
            break
    if settings.get("cert"):
        os.environ["SSL_CERT_FILE"] = settings["cert"]
    if settings.get("proxy"):
        os.environ.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), settings["proxy"]))
    return translate(settings)


def pip_settings(listed: str) -> "dict[str, str]":
    """The settings in the output of `pip config list`. Environment variables precede those of a command."""
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.(.+?)=(.*)$", listed, re.MULTILINE):
            found[name] = str(ast.literal_eval(value))
    return found


def translate(settings: "dict[str, str]") -> "list[str]":
    """The options of uv that mean the same as pip's settings."""
    options: list[str] = []
    for name, option in (
        ("index-url", "--default-index"),
        ("extra-index-url", "--index"),
        ("find-links", "--find-links"),
        ("trusted-host", "--allow-insecure-host"),
        ("constraint", "--constraints"),
    ):
        for value in settings.get(name, "").split():
            is_folder = name == "find-links" and not re.match(r"(https?|file):", value)
            if not is_folder or Path(value).exists():  # pip ignores a missing folder, uv fails
                options += [option, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options += ["--no-index"]
    return options


def trusted_hosts() -> "set[str]":
    """Hosts without a valid certificate that pip is configured to trust."""
    options = configured_sources()
    return {value for option, value in itertools.pairwise(options) if option == "--allow-insecure-host"}
