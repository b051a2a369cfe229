"""An environment: a folder with a Python of its own, its packages, and what is remembered of how it was made."""

import re
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from launcher.homes import home
from launcher.places import WINDOWS, read_json, write_json


class Environment:
    """The folder may be missing, half-made or broken: every question has an answer for that too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / ("Scripts" if WINDOWS else "bin")
        self.python = self.programs / ("python.exe" if WINDOWS else "python")
        self.state_file = folder / "traindeck.json"

    @property
    def state(self) -> "dict[str, Any]":
        """What was set up; `complete` only after everything was verified."""
        return read_json(self.state_file)

    def remember(self, state: "dict[str, Any]") -> None:
        write_json(self.state_file, state)

    @property
    def site_packages(self) -> Path:
        """The folder of the packages (which may not exist)."""
        return next(iter(self.folder.glob("[Ll]ib/python3*/site-packages")), self.folder / "Lib" / "site-packages")

    def torch(self) -> str:
        """The version with its build tag as torch itself states it, read without importing it; or nothing."""
        try:
            text = (self.site_packages / "torch" / "version.py").read_text(encoding="utf-8")
        except OSError:
            return ""
        match = re.search(r"^__version__ *= *['\"](.+?)['\"]", text, re.MULTILINE)
        return match.group(1) if match else ""

    def half_made(self) -> str:
        """Why the packages cannot be trusted, or nothing. pip writes INSTALLER after all other files."""
        site = self.site_packages
        for info in site.glob("*.dist-info"):
            if not (info / "INSTALLER").exists():
                return f"{info.name} was left half-installed"
        leftover = next(iter(site.glob("~*")), None)
        if leftover:
            return f"an interrupted removal left {leftover.name}"
        whole_pip = next(iter(site.glob("pip-*.dist-info/INSTALLER")), None)  # ensurepip may have been cut off
        return "" if whole_pip else "it has no pip"

    def version(self) -> str:
        """The Python version, found by running it; empty if it is missing or broken."""
        own = "{}.{}".format(*sys.version_info)
        if Path(sys.prefix) == self.folder and self.says(f"version = {own}."):  # an update may have exchanged it
            return own
        try:
            command = [str(self.python), "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            return subprocess.check_output(command, stderr=DEVNULL, timeout=60).decode("ascii").strip()
        except (OSError, ValueError, subprocess.SubprocessError):
            return ""

    def says(self, words: str) -> bool:
        """Whether pyvenv.cfg has a line that begins like this."""
        try:
            lines = (self.folder / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        return any(line.startswith(words) for line in lines)

    def working(self) -> bool:
        """Whether it was set up to the end, and nothing broke it since."""
        return bool(self.state.get("complete") and self.version() and not self.half_made())


def current() -> Environment:
    """The one that everything runs in."""
    return Environment(home() / ".venv")


def coming() -> Environment:
    """The one that an update is making, or has made."""
    return Environment(home() / ".venv.new")


def leaving() -> Environment:
    """The one that an update has replaced."""
    return Environment(home() / ".venv.old")
