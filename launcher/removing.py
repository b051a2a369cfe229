"""Command `uninstall`."""

import argparse
import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher import places
from launcher.environment import Environment, remove_if_unused
from launcher.messages import message, print_message
from launcher.places import WINDOWS, runs_home, used_homes
from launcher.running import refuse_during_setup
from launcher.shortcuts import is_own_shortcut, shortcut_path
from launcher.updating import refuse_while_running
from launcher.uv import installed_uv


def uninstall(arguments: "list[str]") -> int:
    """Remove .venv, cache, logs and shortcuts; runs, settings and uv's cache only on request."""
    parser = argparse.ArgumentParser(
        "train_gpu uninstall", description="Remove what Traindeck created, after confirmation."
    )
    parser.add_argument("--runs", action="store_true", help="also all runs with their checkpoints")
    parser.add_argument("--settings", action="store_true", help="also the window's settings, queue and conversations")
    parser.add_argument("--uv-cache", action="store_true", help="also uv's cache of packages, which others may use")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(arguments)
    refuse_during_setup()
    homes = used_homes()
    refuse_while_running(*homes)
    home = runs_home()
    links = [shortcut_path()] if is_own_shortcut() else []
    ours = [folder / name for folder in homes for name in (".venv", ".venv.new", ".venv.old")]
    ours += [places.STATE_FOLDER, *(folder for folder in homes if folder != places.ROOT)]
    caches = [home / "cache", home / "logs", places.LOG.parent]
    if " " in str(home):  # compiled models of all copies (trainer_core/train/engine/compilation.py)
        caches.append(Path.home() / ".cache" / "traindeck")
    on_request = {"runs": [home / "runs"], "settings": settings_files(), "uv_cache": uv_cache()}
    wanted = [path for name, paths in on_request.items() if vars(options)[name] for path in paths]
    found = [path for path in dict.fromkeys([*links, *caches, *wanted, *ours]) if path.exists()]
    if not found:
        print_message(message("launcher.nothing_to_remove"))
        return 0
    print_message("\n".join([message("launcher.to_remove"), *(f"  {path}" for path in found)]))
    for name, paths in on_request.items():
        kept = [str(path) for path in paths if path.exists() and path not in found]
        if kept:
            option = "--" + name.replace("_", "-")
            print_message(message("launcher.kept", path=os.path.commonpath(kept), option=option))
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


def uv_cache() -> "list[Path]":
    """Folder of uv's cache, if there is one. Programs of other folders share it; hard links to it stay valid."""
    try:
        output = subprocess.run(
            [str(installed_uv()), "cache", "dir"], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
        ).stdout
    except OSError:  # no uv
        return []
    folder = output.decode("utf-8", "replace").strip()
    return [Path(folder)] if folder else []


def settings_files() -> "list[Path]":
    """What the window stores (app/core/settings.py), shared by all copies of Traindeck."""
    variable, usual, name = (
        ("APPDATA", "AppData/Roaming", "Traindeck") if WINDOWS else ("XDG_CONFIG_HOME", ".config", "traindeck")
    )
    base = os.environ.get(variable) or str(Path.home() / usual)
    folder = Path(os.environ.get("TRAINDECK_CONFIG_DIR") or Path(base) / name)
    return [folder / name for name in ("settings.json", "queue.json", "queue.lock", "conversations")]


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
