"""Copies, renames and deletes environments, even the one that runs this code.

On Windows a running program cannot be deleted and blocks renaming its folder, but it can be renamed itself: it is moved
to another folder first.
"""

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.places import WINDOWS
from launcher.running import processes_using

LOADABLE_SUFFIXES = (".dll", ".pyd", ".exe")
RENAME_ATTEMPTS = 30


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
