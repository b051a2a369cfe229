"""Clones an environment with hard links, which need no disk space."""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from launcher.environment import Environment
from launcher.environment_processes import processes_using
from launcher.messages import message
from launcher.places import WINDOWS
from launcher.processes import show_activity

LOADABLE_SUFFIXES = (".dll", ".pyd", ".exe")


def clone_environment(old: Environment, new: Environment) -> None:
    """Link or copy all files except the state file.

    pip and Python replace files rather than write into them; files that may be written in place are copied. So are
    libraries in use on Windows: no hard link to a loaded library can be deleted there.
    """
    # Written in place: files of .venv itself (pyvenv.cfg, constraints.txt), scripts, and setuptools' lists.
    in_place = (".pth", ".egg-link")
    copied = in_place + (LOADABLE_SUFFIXES if WINDOWS and processes_using(old.folder) else ())
    started = shown = time.monotonic()
    for path, folders, files in os.walk(str(old.folder)):
        source = Path(path)
        target = new.folder / source.relative_to(old.folder)
        target.mkdir(parents=True, exist_ok=True)
        copies = source in (old.folder, old.programs)
        for name in folders:
            if (source / name).is_symlink():
                (target / name).symlink_to((source / name).readlink())
        for name in files:
            if source / name != old.state_file:
                link_or_copy(source / name, target / name, copies or name.lower().endswith(copied))
        if time.monotonic() - shown >= 1:
            shown = time.monotonic()
            show_activity(message("launcher.activity.prepare", name=new.folder.name), shown - started, target.name)


def link_or_copy(source: Path, target: Path, copy: bool) -> None:
    """Link or copy one file. A file that disappears meanwhile (a temporary .pyc) is skipped."""
    with contextlib.suppress(FileNotFoundError):
        if source.is_symlink():
            target.symlink_to(source.readlink())
            return
        if not copy:
            try:
                os.link(str(source), str(target))
                return
            except FileNotFoundError:
                raise
            except OSError:  # exFAT has no links, and a file at most 1023 of them on NTFS
                pass
        shutil.copy2(str(source), str(target))


def rewrite_folder_name(env: Environment, name: str) -> None:
    """Replace the folder's name in the environment's scripts by `name`, which it is going to be renamed to.

    In first lines of scripts, activate scripts, and the line between program and archive in pip's .exe files. An
    archive may be preceded by data of any length.
    """
    before, after = re.escape(env.folder.name.encode("ascii")), name.encode("ascii")
    text = re.compile(rb"([\\/])" + before + rb"(?![\w.-])")
    line = re.compile(rb"(#![^\r\n]*[\\/])" + before + rb"([\\/][^\r\n]*[\r\n]+)(?=PK\x03\x04)")
    for file in [env.folder / "pyvenv.cfg", *env.programs.iterdir()]:
        if file.is_symlink() or not file.is_file():
            continue
        content = file.read_bytes()
        if file.suffix.lower() == ".exe":
            changed = line.sub(rb"\g<1>" + after + rb"\g<2>", content)
        elif b"\0" not in content:
            changed = text.sub(rb"\g<1>" + after, content)
        else:
            continue
        if changed != content:
            part = file.with_name(file.name + ".part")
            part.write_bytes(changed)
            shutil.copymode(str(file), str(part))
            part.replace(file)
