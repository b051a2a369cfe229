"""Virtual environments of Traindeck, with a state file of their setup, and their folders.

These are copied, renamed and deleted, even the one that runs this code. On Windows a running program cannot be deleted
and blocks renaming its folder, but it can be renamed itself: it is moved to another folder first.
"""

import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from launcher import places
from launcher.messages import message, print_and_log
from launcher.places import WINDOWS, environment_home, read_json, write_json
from launcher.pythons import find_python
from launcher.running import processes_using

LOADABLE_SUFFIXES = (".dll", ".pyd", ".exe")
RENAME_ATTEMPTS = 30


class Environment:
    """A virtual environment. Its folder may be missing, incomplete or damaged: no method raises for that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / ("Scripts" if WINDOWS else "bin")
        self.python = self.programs / ("python.exe" if WINDOWS else "python")
        self.state_file = folder / "traindeck.json"
        self.config_file = folder / "pyvenv.cfg"

    @property
    def state(self) -> "dict[str, Any]":
        """Content of the state file. `complete` is set after verification."""
        return read_json(self.state_file)

    def update_state(self, **changes: object) -> None:
        write_json(self.state_file, dict(self.state, **changes))

    @property
    def site_packages(self) -> Path:
        """Folder of the packages; may not exist."""
        return next(iter(self.folder.glob("[Ll]ib/python3*/site-packages")), self.folder / "Lib" / "site-packages")

    def torch_version(self) -> str:
        """torch.__version__ with its build tag, without importing torch; empty if not installed."""
        return find_in(self.site_packages / "torch" / "version.py", r"^__version__ *= *['\"](.+?)['\"]")

    def installed_versions(self) -> "dict[str, str]":
        """Versions of completely installed packages by normalized name."""
        names = [info.parent.name[: -len(".dist-info")] for info in self.site_packages.glob("*.dist-info/INSTALLER")]
        return {normalize(name.rpartition("-")[0]): name.rpartition("-")[2] for name in names}

    def incomplete_packages(self) -> "list[Path]":
        """What describes packages whose installation was interrupted: INSTALLER is written last."""
        return [info for info in self.site_packages.glob("*.dist-info") if not (info / "INSTALLER").exists()]

    def damaged_packages(self) -> "list[Path]":
        """What describes packages that are incomplete, or whose files are missing or have another size. Takes 1 s."""
        records = {info: read_record(info / "RECORD") for info in self.site_packages.glob("*.dist-info")}
        listed = {row for rows in records.values() for row in rows}  # packages may share a file
        site = self.site_packages

        def is_intact(path: str) -> bool:
            try:
                return bool(listed & {(path, ""), (path, str((site / path).stat().st_size))})
            except OSError:
                return False

        incomplete = self.incomplete_packages()
        return [
            info
            for info, rows in records.items()
            if info in incomplete or not rows or not all(is_intact(path) for path, _ in rows)
        ]

    def remove_damaged_packages(self, names: "set[str]") -> "list[str]":
        """Forget incomplete packages, and damaged ones of `names`, so that they are installed again. Returns their
        names."""
        incomplete, removed = self.incomplete_packages(), []
        for info in self.damaged_packages():
            name = normalize(info.stem.rpartition("-")[0])
            if info in incomplete or name in names:
                print_and_log(message("launcher.reason.damaged", name=info.stem), indent="  ")
                shutil.rmtree(str(info), ignore_errors=True)
                removed.append(name)
        return removed

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
        return find_in(self.config_file, r"^version(?:_info)? = (\d+\.\d+)")

    def is_relocatable(self) -> bool:
        """Whether uv made it, so that its scripts also work in a copy and after a rename."""
        return bool(find_in(self.config_file, r"^relocatable = (true)"))

    def is_usable(self, thorough: bool = False) -> bool:
        """Whether setup has completed and the environment is still intact. `thorough`: compare all files."""
        if not (self.state.get("complete") and self.torch_version() and self.python_version()):
            return False
        return not (self.damaged_packages() if thorough else self.incomplete_packages())

    def repair_python(self) -> None:
        """Use another Python of the same version if its own is not there: the folder was moved. Raises SetupError.

        pyvenv.cfg and, except on Windows, a link name the Python. Everything else in an environment is relative.
        """
        version = self.recorded_version()
        if not version or not self.state.get("window") or self.python_version():
            return
        python = find_python(version=version)
        home = re.sub(r"[/\\][^/\\]*$", "", python)
        text = self.config_file.read_text(encoding="utf-8")
        self.config_file.write_text(re.sub(r"(?m)^home = .*$", lambda _: f"home = {home}", text), encoding="utf-8")
        if not WINDOWS:
            with contextlib.suppress(FileNotFoundError):
                self.python.unlink()
            self.python.symlink_to(python)
        print_and_log(message("launcher.moved", folder=self.folder, python=python))


def normalize(name: str) -> str:
    """Name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_record(file: Path) -> "list[tuple[str, str]]":
    """Paths and sizes (empty: unknown) in a RECORD, except of compiled modules, which Python writes again. Empty if it
    is missing or damaged."""
    try:
        rows = [row for row in csv.reader(file.read_text(encoding="utf-8").splitlines()) if len(row) == 3]
    except (OSError, ValueError, csv.Error):
        return []
    return [(path, size) for path, _, size in rows if not path.endswith(".pyc")]


def find_in(file: Path, pattern: str) -> str:
    """The first group of the first match in a file; empty without one."""
    try:
        match = re.search(pattern, file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else ""


def current_environment() -> Environment:
    """The environment in use."""
    return Environment(environment_home() / ".venv")


def new_environment() -> Environment:
    """The environment of an update, finished or not."""
    return Environment(environment_home() / ".venv.new")


def previous_environment() -> Environment:
    """The environment that an update has replaced."""
    return Environment(environment_home() / ".venv.old")


# --- folders -------------------------------------------------------------------------------------------


def clone_environment(old: Environment, new: Environment) -> None:
    """Link or copy all files except the state file. Hard links need no disk space.

    pip, uv and Python replace files rather than write into them; files that may be written in place are copied. So are
    libraries in use on Windows: no hard link to a loaded library can be deleted there.
    """
    # Written in place: files of .venv itself (pyvenv.cfg), scripts, and setuptools' lists.
    copied = (".pth", ".egg-link") + (LOADABLE_SUFFIXES if WINDOWS and processes_using(old.folder) else ())

    def link_or_copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # a temporary .pyc that disappeared meanwhile
            if Path(source).parent not in (old.folder, old.programs) and not source.lower().endswith(copied):
                with contextlib.suppress(OSError):  # exFAT has no links, and a file at most 1023 of them on NTFS
                    os.link(source, target)
                    return
            shutil.copy2(source, target)

    ignored = shutil.ignore_patterns(old.state_file.name)
    shutil.copytree(str(old.folder), str(new.folder), symlinks=True, ignore=ignored, copy_function=link_or_copy)


def move_running_programs(env: Environment) -> None:
    """Move the Python programs out of the environment, and put copies in their place."""
    aside = moved_programs_folder(env)
    aside.mkdir(exist_ok=True)
    for program in env.programs.glob("python*.exe"):
        copy = program.with_suffix(".copy")
        shutil.copy2(str(program), str(copy))
        program.replace(aside / f"old-{uuid.uuid4().hex}.exe")
        copy.replace(program)


def moved_programs_folder(env: Environment) -> Path:
    """Folder of moved programs, on the same disk: a running program cannot be moved to another."""
    return env.folder.parent / places.STATE_FOLDER.name


def restore_programs(env: Environment) -> None:
    """Restore programs after an interrupted move."""
    for copy in env.programs.glob("python*.copy"):
        program = copy.with_suffix(".exe")
        if program.exists():
            copy.unlink()
        else:
            copy.replace(program)


def rename_environment(source: Environment, target: Environment) -> None:
    """Rename an environment; on Windows, retry for 3 s while a virus scanner reads its files."""
    if WINDOWS:
        move_running_programs(source)
    for _ in range(RENAME_ATTEMPTS if WINDOWS else 0):
        with contextlib.suppress(PermissionError):
            source.folder.rename(target.folder)
            return
        time.sleep(0.1)
    source.folder.rename(target.folder)


def remove_environment(env: Environment) -> None:
    """Delete an environment. Raises OSError if a file in it is in use."""
    if not env.folder.exists():
        return
    if WINDOWS:
        move_running_programs(env)
    shutil.rmtree(str(env.folder))
    for program in moved_programs_folder(env).glob("old-*.exe"):
        with contextlib.suppress(OSError):  # it still runs
            program.unlink()


def remove_if_unused(env: Environment) -> None:
    """Delete an environment if no process uses it; what remains is deleted at the next start."""
    if env.folder.exists() and not processes_using(env.folder):
        with contextlib.suppress(OSError):
            remove_environment(env)
