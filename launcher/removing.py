"""Command `uninstall`."""

import argparse
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher import places
from launcher.environment import Environment, current_environment
from launcher.environment_processes import processes_using
from launcher.failures import SetupError
from launcher.folders import remove_if_unused
from launcher.messages import message, print_message
from launcher.places import WINDOWS, read_json, runs_home
from launcher.shortcuts import exec_line
from launcher.uv import installed_uv


def uninstall(arguments: "list[str]") -> int:
    """Remove .venv, cache, logs and shortcuts; runs and settings only on request."""
    parser = argparse.ArgumentParser(
        "train_gpu uninstall", description="Remove what Traindeck created, after confirmation."
    )
    parser.add_argument("--runs", action="store_true", help="also all runs with their checkpoints")
    parser.add_argument("--settings", action="store_true", help="also the window's settings and queue")
    parser.add_argument("--uv-cache", action="store_true", help="also uv's cache of packages, which others may use")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(arguments)
    running = processes_using(current_environment().folder)
    if running:
        raise SetupError(message("launcher.running", pids=", ".join(map(str, running))))
    home = runs_home()
    links = [Path(link) for link in read_json(places.SHORTCUTS).get("made", []) if points_here(Path(link))]
    made_in = dict.fromkeys([places.ROOT, current_environment().folder.parent])
    ours = [folder / name for folder in made_in for name in (".venv", ".venv.new", ".venv.old")]
    ours += [folder for folder in made_in if folder != places.ROOT] + [places.STATE_FOLDER]
    wishes = [*([home / "runs"] if options.runs else []), *(settings_files() if options.settings else [])]
    folders = [home / "cache", *compile_caches(home), home / "logs", places.LOG.parent, *wishes, *ours]
    folders += [Path(uv_cache())] if options.uv_cache and uv_cache() else []
    found = [path for path in dict.fromkeys([*links, *folders]) if path.exists()]
    if not found:
        print_message(message("launcher.nothing_to_remove"))
        return 0
    print_message("\n".join([message("launcher.to_remove"), *(f"  {path}" for path in found)]))
    for notice in kept_notices(options, home):
        print_message(notice)
    if not options.yes and not confirm(message("launcher.confirm_removal")):
        print_message(message("launcher.nothing_removed"))
        return 3
    left = [path for path in found if not try_remove(path)]
    if options.settings:
        with contextlib.suppress(OSError):  # other files are in it
            settings_files()[0].parent.rmdir()
    for path in left:  # such as the python.exe that runs this
        print_message(message("launcher.remove_later", path=path))
    if not left:
        print_message(message("launcher.removed"))
    return 0 if all(path in ours for path in left) else 1


def uv_cache() -> str:
    """Folder of uv's cache, or empty. Programs of other folders share it; hard links to it stay valid."""
    program = installed_uv()
    if not program.exists():
        return ""
    try:
        output = subprocess.run([str(program), "cache", "dir"], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL).stdout
    except OSError:
        return ""
    return output.decode("utf-8", "replace").strip()


def compile_caches(home: Path) -> "list[Path]":
    """Cache of compiled models if the path has a space (trainer_core/train/engine/compilation.py); shared by copies."""
    return [Path.home() / ".cache" / "traindeck"] if " " in str(home) else []


def kept_notices(options: argparse.Namespace, home: Path) -> "Iterator[str]":
    """Return what is kept, and the option that removes it."""
    if not options.runs and (home / "runs").exists():
        yield message("launcher.runs_kept", folder=home / "runs")
    if not options.uv_cache and uv_cache() and Path(uv_cache()).exists():
        yield message("launcher.uv_cache_kept", folder=uv_cache())
    if not options.settings and any(path.exists() for path in settings_files()):
        yield message("launcher.settings_kept", folder=settings_files()[0].parent)


def points_here(link: Path) -> bool:
    """Whether a shortcut points to this copy of Traindeck: another copy may have replaced it."""
    line = exec_line(places.ROOT / "train_gpu.sh").encode("utf-8", "surrogateescape")
    target = line + b"\n" if link.suffix == ".desktop" else str(places.ROOT).encode("utf-16-le")
    try:
        return target in link.read_bytes()
    except OSError:
        return False


def settings_files() -> "list[Path]":
    """Settings and queue of the window (app/core/settings.py), shared by all copies of Traindeck."""
    variable, usual, name = (
        ("APPDATA", "AppData/Roaming", "Traindeck") if WINDOWS else ("XDG_CONFIG_HOME", ".config", "traindeck")
    )
    base = os.environ.get(variable) or str(Path.home() / usual)
    folder = Path(os.environ.get("TRAINDECK_CONFIG_DIR") or Path(base) / name)
    return [folder / "settings.json", folder / "queue.json"]


def confirm(question: str) -> bool:
    """Ask on the terminal. Returns False without a terminal."""
    try:
        return input(question + " ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def try_remove(path: Path) -> bool:
    """Delete a file or folder. Returns whether it is gone."""
    if path.name in (".venv", ".venv.new", ".venv.old"):
        remove_if_unused(Environment(path))
    elif path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return not path.exists()
