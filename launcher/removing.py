"""Removal of what was made here."""

import argparse
import contextlib
import os
import shutil
import sys
from pathlib import Path

from launcher import places
from launcher.environment import Environment, coming, current, leaving
from launcher.folders import discard
from launcher.places import read_json


def uninstall(arguments: "list[str]") -> int:
    """Remove what Traindeck made: .venv, cache, logs, shortcuts; runs only when that is asked for."""
    parser = argparse.ArgumentParser("train_gpu uninstall", description="Remove what was made here, after asking.")
    parser.add_argument("--runs", action="store_true", help="also all runs with their checkpoints")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    asked = parser.parse_args(arguments)
    home = Path(os.environ.get("TRAINDECK_HOME") or places.ROOT)
    links = [Path(link) for link in read_json(places.SHORTCUTS).get("made", [])]
    ours = [current().folder, coming().folder, leaving().folder, places.KEEP]
    folders = [home / "cache", home / "logs", places.LOG.parent, *([home / "runs"] if asked.runs else []), *ours]
    found = [path for path in dict.fromkeys([*links, *folders]) if path.exists()]
    if not found:
        print("There is nothing to remove.", file=sys.stderr)
        return 0
    print("This is removed:\n" + "\n".join(f"  {path}" for path in found), file=sys.stderr, flush=True)
    if not asked.runs and (home / "runs").exists():
        print(f"Runs are kept: {home / 'runs'}  (uninstall --runs removes them too)", file=sys.stderr, flush=True)
    if not asked.yes and not agreed("Remove? [y/N] "):
        print("Nothing was removed.", file=sys.stderr)
        return 3
    left = [path for path in found if not removed(path)]
    for path in left:  # among them the python.exe that runs this
        print(f"In use, remove it later: {path}", file=sys.stderr)
    print("Traindeck's own folder can be deleted now." if not left else "", file=sys.stderr)
    return 0 if all(path in ours for path in left) else 1


def agreed(question: str) -> bool:
    """Whether a person says yes; nobody there means no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def removed(path: Path) -> bool:
    """Delete a file or folder as far as it can be; whether it is gone."""
    if path.name.startswith(current().folder.name) and path != places.KEEP:
        discard(Environment(path))
    elif path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return not path.exists()
