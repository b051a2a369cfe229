"""A second environment from the files of the first, which takes no room on the disk while it stays the same."""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from launcher.environment import Environment
from launcher.places import WINDOWS
from launcher.processes import heartbeat
from launcher.users import users

LOADED = (".dll", ".pyd", ".exe")


def clone(old: Environment, new: Environment) -> None:
    """Hard links where the disk has them, else copies; all but the state, which says that something is whole.

    pip, like Python with its .pyc files, writes anew and renames; what may be written in place is copied. So is, on
    Windows, what runs: there no name of a loaded library can be deleted, and pip has to.
    """
    # Files of .venv itself (pyvenv.cfg, constraints.txt), programs that name their folder, and setuptools' lists.
    in_place = (".pth", ".egg-link")
    copied = in_place + (LOADED if WINDOWS and users(old.folder) else ())
    started = told = time.monotonic()
    for place, folders, files in os.walk(str(old.folder)):
        source = Path(place)
        target = new.folder / source.relative_to(old.folder)
        target.mkdir(parents=True, exist_ok=True)
        apart = source in (old.folder, old.programs)
        for name in folders:
            if (source / name).is_symlink():
                (target / name).symlink_to((source / name).readlink())
        for name in files:
            if source / name != old.state_file:
                take(source / name, target / name, apart or name.lower().endswith(copied))
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            heartbeat(f"preparing {new.folder.name}", told - started, target.name)


def take(source: Path, target: Path, copy: bool) -> None:
    """One file by a link or a copy; one that went away meanwhile (a .pyc in the making) is nothing lost."""
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


def say_name(env: Environment, name: str) -> None:
    """Let the environment's scripts name the folder that it is going to be: its folder is still called otherwise.

    Those are the first lines of scripts, the activate scripts, and the line between program and archive in pip's
    .exe files; archives may have anything before them, of any length.
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
