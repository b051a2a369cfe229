"""Repairs an environment whose folder was moved to where its Python is not: another computer, user or drive.

An environment names its Python in pyvenv.cfg and, except on Windows, by a link. Everything else in it is relative.
"""

import re
import time

from launcher.environment import Environment
from launcher.messages import message, print_and_log
from launcher.places import WINDOWS
from launcher.pythons import find_python


def repair_python(env: Environment) -> None:
    """Let the environment use another Python of its version, if its own is not there. Raises SetupError."""
    version = env.recorded_version()
    if not version or not env.state.get("window") or env.python_version():
        return
    started = time.monotonic()
    python = find_python(version=version)
    point_to(env, python)
    seconds = time.monotonic() - started
    print_and_log(message("launcher.moved", folder=env.folder, python=python, seconds=seconds))


def point_to(env: Environment, python: str) -> None:
    config = env.folder / "pyvenv.cfg"
    folder = re.sub(r"[/\\][^/\\]*$", "", python)
    text = re.sub(r"(?m)^home = .*$", lambda _: f"home = {folder}", config.read_text(encoding="utf-8"))
    part = config.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(config)
    if not WINDOWS:
        link = env.programs / "python.part"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(python)
        link.replace(env.python)
