"""Renames and deletes environments, even the one that runs this code.

On Windows a running program cannot be deleted and blocks renaming its folder, but it can be renamed itself: it is moved
to another folder first.
"""

import contextlib
import itertools
import os
import shutil
import time
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.environment_processes import processes_using
from launcher.places import WINDOWS

MOVE_COUNTER = itertools.count()


def move_running_programs(env: Environment, keep_copies: bool) -> None:
    """Move the Python programs out of the environment; `keep_copies` leaves copies in their place."""
    aside = moved_programs_folder(env)
    aside.mkdir(exist_ok=True)
    for program in env.programs.glob("python*.exe"):
        copy = program.with_suffix(".copy")
        if keep_copies:
            shutil.copy2(str(program), str(copy))
        program.replace(aside / f"old-{os.getpid()}-{next(MOVE_COUNTER)}-{program.name}")
        if keep_copies:
            copy.replace(program)


def moved_programs_folder(env: Environment) -> Path:
    """Folder of moved programs, on the same disk: a running program cannot be moved to another."""
    return env.folder.parent / places.STATE_FOLDER.name


def delete_moved_programs(env: Environment) -> None:
    """Delete moved programs that no longer run."""
    for program in moved_programs_folder(env).glob("old-*.exe"):
        with contextlib.suppress(OSError):
            program.unlink()


def restore_programs(env: Environment) -> None:
    """Restore programs after an interrupted move."""
    for copy in env.programs.glob("python*.copy"):
        program = copy.with_suffix(".exe")
        if program.exists():
            copy.unlink()
        else:
            copy.replace(program)


def rename_environment(source: Environment, target: Environment, timeout_s: float = 3.0) -> None:
    """Rename an environment; on Windows, retry while a virus scanner reads its files."""
    if WINDOWS:
        move_running_programs(source, keep_copies=True)
    until = time.monotonic() + timeout_s
    while True:
        try:
            source.folder.rename(target.folder)
        except PermissionError:
            if not WINDOWS or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def remove_environment(env: Environment) -> None:
    """Delete an environment. Raises OSError if a file in it is in use."""
    if not env.folder.exists():
        return
    if WINDOWS:
        move_running_programs(env, keep_copies=False)
    shutil.rmtree(str(env.folder))
    delete_moved_programs(env)


def remove_if_unused(env: Environment) -> None:
    """Delete an environment if no process uses it; what remains is deleted at the next start."""
    if env.folder.exists() and not processes_using(env.folder):
        with contextlib.suppress(OSError):
            remove_environment(env)
