"""Removal of what was made here."""

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from launcher import places
from launcher.environment import Environment, current
from launcher.failures import SetupError
from launcher.folders import discard
from launcher.homes import home_of_runs
from launcher.places import WINDOWS, read_json
from launcher.users import users
from launcher.words import show, shown


def uninstall(arguments: "list[str]") -> int:
    """Remove what Traindeck made: .venv, cache, logs, shortcuts; runs and settings only when that is asked for."""
    parser = argparse.ArgumentParser("train_gpu uninstall", description="Remove what was made here, after asking.")
    parser.add_argument("--runs", action="store_true", help="also all runs with their checkpoints")
    parser.add_argument("--settings", action="store_true", help="also the window's settings and queue")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    asked = parser.parse_args(arguments)
    running = users(current().folder)
    if running:
        numbers = ", ".join(map(str, running))
        raise SetupError(f"Traindeck is running (process {numbers}): close it, or wait for it, and start again.")
    home = home_of_runs()
    links = [Path(link) for link in read_json(places.SHORTCUTS).get("made", []) if leads_here(Path(link))]
    made_in = dict.fromkeys([places.ROOT, current().folder.parent])
    ours = [folder / name for folder in made_in for name in (".venv", ".venv.new", ".venv.old")]
    ours += [folder for folder in made_in if folder != places.ROOT] + [places.KEEP]
    wishes = [*([home / "runs"] if asked.runs else []), *(settings() if asked.settings else [])]
    folders = [home / "cache", *compiled(home), home / "logs", places.LOG.parent, *wishes, *ours]
    found = [path for path in dict.fromkeys([*links, *folders]) if path.exists()]
    if not found:
        show("There is nothing to remove.")
        return 0
    show("This is removed:\n" + "\n".join(f"  {path}" for path in found))
    for words in kept(asked, home):
        show(words)
    if not asked.yes and not agreed("Remove? [y/N]"):
        show("Nothing was removed.")
        return 3
    left = [path for path in found if not removed(path)]
    if asked.settings:
        with contextlib.suppress(OSError):  # somebody else's files are in it
            settings()[0].parent.rmdir()
    for path in left:  # among them the python.exe that runs this
        show(f"In use, remove it later: {path}")
    if not left:
        show("Traindeck's own folder can be deleted now.")
    return 0 if all(path in ours for path in left) else 1


def compiled(home: Path) -> "list[Path]":
    """Where compiled models are kept for a folder with a space in its path (trainer_core/train/engine/compiling.py);
    other copies of Traindeck make theirs again."""
    return [Path.home() / ".cache" / "traindeck"] if " " in str(home) else []


def kept(asked: argparse.Namespace, home: Path) -> "Iterator[str]":
    """What is a person's own, and how it would go too."""
    if not asked.runs and (home / "runs").exists():
        yield f"Runs are kept: {home / 'runs'}  (uninstall --runs removes them too)"
    if not asked.settings and any(path.exists() for path in settings()):
        place = settings()[0].parent
        yield f"The window's settings and queue are kept: {place}  (uninstall --settings removes them too)"


def leads_here(link: Path) -> bool:
    """Whether a shortcut that was made here still is ours: another copy of Traindeck may have written its own there."""
    try:
        return str(places.ROOT).encode("utf-16-le") in link.read_bytes()
    except OSError:
        return False


def settings() -> "list[Path]":
    """The window's own files, where app/state/settings.py keeps them; other copies of Traindeck have the same."""
    variable, usual, name = (
        ("APPDATA", "AppData/Roaming", "Traindeck") if WINDOWS else ("XDG_CONFIG_HOME", ".config", "traindeck")
    )
    base = os.environ.get(variable) or str(Path.home() / usual)
    folder = Path(os.environ.get("TRAINDECK_CONFIG_DIR") or Path(base) / name)
    return [folder / "settings.json", folder / "queue.json"]


def agreed(question: str) -> bool:
    """Whether a person says yes; nobody there means no."""
    try:
        return input(shown(question) + " ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def removed(path: Path) -> bool:
    """Delete a file or folder as far as it can be; whether it is gone."""
    if path.name in (".venv", ".venv.new", ".venv.old"):
        discard(Environment(path))
    elif path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return not path.exists()
