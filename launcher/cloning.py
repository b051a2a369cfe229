"""Clones an environment with hard links, which need no disk space. uv made it relocatable, so its scripts also work in
the clone and after a rename."""

import contextlib
import os
import shutil
from pathlib import Path

from launcher.environment import Environment
from launcher.environment_processes import processes_using
from launcher.places import WINDOWS

LOADABLE_SUFFIXES = (".dll", ".pyd", ".exe")


def can_be_cloned(env: Environment) -> bool:
    return env.has_config_line("relocatable = true")


def clone_environment(old: Environment, new: Environment) -> None:
    """Link or copy all files except the state file.

    pip, uv and Python replace files rather than write into them; files that may be written in place are copied. So are
    libraries in use on Windows: no hard link to a loaded library can be deleted there.
    """
    # Written in place: files of .venv itself (pyvenv.cfg), scripts, and setuptools' lists.
    copied = (".pth", ".egg-link") + (LOADABLE_SUFFIXES if WINDOWS and processes_using(old.folder) else ())

    def link_or_copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # a temporary .pyc that disappeared meanwhile
            if Path(source).parent not in (old.folder, old.programs) and not source.lower().endswith(copied):
                try:
                    os.link(source, target)
                    return
                except FileNotFoundError:
                    raise
                except OSError:  # exFAT has no links, and a file at most 1023 of them on NTFS
                    pass
            shutil.copy2(source, target)

    ignored = shutil.ignore_patterns(old.state_file.name)
    shutil.copytree(str(old.folder), str(new.folder), symlinks=True, ignore=ignored, copy_function=link_or_copy)
