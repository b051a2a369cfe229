"""Virtual environments of Traindeck, with a state file of their setup."""

import re
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from launcher.messages import message
from launcher.places import WINDOWS, environment_home, read_json, write_json


class Environment:
    """A virtual environment. Its folder may be missing, incomplete or damaged: no method raises for that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / ("Scripts" if WINDOWS else "bin")
        self.python = self.programs / ("python.exe" if WINDOWS else "python")
        self.state_file = folder / "traindeck.json"

    @property
    def state(self) -> "dict[str, Any]":
        """Content of the state file. `complete` is set after verification."""
        return read_json(self.state_file)

    def write_state(self, state: "dict[str, Any]") -> None:
        write_json(self.state_file, state)

    @property
    def site_packages(self) -> Path:
        """Folder of the packages; may not exist."""
        return next(iter(self.folder.glob("[Ll]ib/python3*/site-packages")), self.folder / "Lib" / "site-packages")

    def torch_version(self) -> str:
        """torch.__version__ with its build tag, without importing torch; empty if not installed."""
        try:
            text = (self.site_packages / "torch" / "version.py").read_text(encoding="utf-8")
        except OSError:
            return ""
        match = re.search(r"^__version__ *= *['\"](.+?)['\"]", text, re.MULTILINE)
        return match.group(1) if match else ""

    def incomplete_package(self) -> str:
        """Name of a package whose installation was interrupted, or empty: INSTALLER is written last."""
        infos = self.site_packages.glob("*.dist-info")
        return next((info.name for info in infos if not (info / "INSTALLER").exists()), "")

    def pip_problem(self) -> "str | None":
        """Return why its pip cannot be used, or None: ensurepip may have been interrupted."""
        whole_pip = next(iter(self.site_packages.glob("pip-*.dist-info/INSTALLER")), None)
        return None if whole_pip else message("launcher.reason.no_pip")

    def python_version(self) -> str:
        """The Python version, found by running it; empty if it is missing or broken."""
        own = "{}.{}".format(*sys.version_info)
        if Path(sys.prefix) == self.folder and self.recorded_version() == own:  # not replaced by an update
            return own
        try:
            command = [str(self.python), "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            return subprocess.check_output(command, stderr=DEVNULL, timeout=60).decode("ascii").strip()
        except (OSError, ValueError, subprocess.SubprocessError):
            return ""

    def recorded_version(self) -> str:
        """The Python version that pyvenv.cfg names, such as 3.12; empty if it is missing."""
        match = re.search(r"^version(?:_info)? = (\d+\.\d+)", self._config(), re.MULTILINE)
        return match.group(1) if match else ""

    def has_config_line(self, words: str) -> bool:
        """Whether pyvenv.cfg has a line that starts with `words`."""
        return any(line.startswith(words) for line in self._config().splitlines())

    def _config(self) -> str:
        try:
            return (self.folder / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def is_usable(self) -> bool:
        """Whether setup has completed and the environment is still intact."""
        return bool(self.state.get("complete") and self.python_version() and not self.incomplete_package())


def current_environment() -> Environment:
    """The environment in use."""
    return Environment(environment_home() / ".venv")


def new_environment() -> Environment:
    """The environment of an update, finished or not."""
    return Environment(environment_home() / ".venv.new")


def previous_environment() -> Environment:
    """The environment that an update has replaced."""
    return Environment(environment_home() / ".venv.old")
