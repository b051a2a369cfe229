"""Moving and deleting environments, also while the Python that does it runs from one of them.

On Windows a program that runs can be neither deleted nor be in a folder that is renamed, but it can itself be renamed:
so it steps aside first, to a folder that stays.
"""

import contextlib
import itertools
import os
import shutil
import time
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.places import WINDOWS
from launcher.users import users

ASIDE = itertools.count()


def step_aside(env: Environment, copies: bool) -> None:
    """Move the programs that run out of the environment; `copies` of them stay in their place."""
    aside = beside(env)
    aside.mkdir(exist_ok=True)
    for program in env.programs.glob("python*.exe"):
        copy = program.with_suffix(".copy")
        if copies:
            shutil.copy2(str(program), str(copy))
        program.replace(aside / f"old-{os.getpid()}-{next(ASIDE)}-{program.name}")
        if copies:
            copy.replace(program)


def beside(env: Environment) -> Path:
    """The folder that stays: a program that runs cannot be moved to another disk."""
    return env.folder.parent / places.KEEP.name


def sweep(env: Environment) -> None:
    """Delete what stepped aside, but for what still runs."""
    for program in beside(env).glob("old-*.exe"):
        with contextlib.suppress(OSError):
            program.unlink()


def finish_step_aside(env: Environment) -> None:
    """Put back the copies of programs that stepped aside, if that was cut off."""
    for copy in env.programs.glob("python*.copy"):
        program = copy.with_suffix(".exe")
        if program.exists():
            copy.unlink()
        else:
            copy.replace(program)


def move(source: Environment, target: Environment, patience: float = 3.0) -> None:
    """Rename an environment to where none is; a virus scanner that looks into new files is waited for, in seconds."""
    if WINDOWS:
        step_aside(source, copies=True)
    until = time.monotonic() + patience
    while True:
        try:
            source.folder.rename(target.folder)
        except PermissionError:
            if not WINDOWS or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def remove(env: Environment) -> None:
    """Delete an environment; raises OSError where a file in it is in use."""
    if not env.folder.exists():
        return
    if WINDOWS:
        step_aside(env, copies=False)
    shutil.rmtree(str(env.folder))
    sweep(env)


def discard(env: Environment) -> None:
    """Delete an environment that nothing runs from, as far as that can be; the next start goes on with it."""
    if env.folder.exists() and not users(env.folder):
        with contextlib.suppress(OSError):
            remove(env)
