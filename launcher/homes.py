"""Where packages and runs are: in Traindeck's own folder, or elsewhere where that is too deep or somebody wants it."""

import hashlib
import os
import sys
from pathlib import Path

from launcher import places
from launcher.places import WINDOWS, read_json

SHORT_HOME = "put the packages elsewhere (setup --environment C:\\Traindeck), or move Traindeck nearer to C:\\."

LONGEST_BELOW = 196  # the longest path below a home: \\.venv.new\\ and a licence of torch 2.13
LONGEST_OF_A_RUN = 170  # the longest path below Traindeck's folder, with a long run name (doctor/system.py has it too)


def windows_long_paths() -> bool:
    """Whether paths may be longer than 259 characters; always so elsewhere than on Windows."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, "SYSTEM\\CurrentControlSet\\Control\\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:
            return False
    else:
        return True


def has_room(folder: Path, below: int = LONGEST_BELOW) -> bool:
    """Whether Windows allows paths that go on for so many characters below a folder."""
    return windows_long_paths() or len(str(folder)) + below <= 259


def home() -> Path:
    """The folder with .venv and, during updates, .venv.new and .venv.old, which are renamed: so it is one disk's.

    What is said by TRAINDECK_ENVIRONMENT or `setup --environment` counts, then what is there, then whether it fits.
    """
    chosen = os.environ.get("TRAINDECK_ENVIRONMENT") or read_json(places.KEEP / "choices.json").get("environment")
    if chosen and chosen not in ("auto", "here", "none"):
        return own_folder_in(Path(str(chosen)).absolute())
    if chosen == "here" or not WINDOWS or read_json(places.ROOT / ".venv" / "traindeck.json").get("complete"):
        return places.ROOT
    near = own_folder_in(Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "Traindeck")
    too_deep = not has_room(places.ROOT) and len(str(near)) < len(str(places.ROOT))
    return near if too_deep or near.exists() else places.ROOT


def own_folder_in(folder: Path) -> Path:
    """Nobody else's: another Traindeck, or somebody's own .venv, may be in the same folder."""
    name = os.path.normcase(str(places.ROOT)).encode("utf-8", "surrogateescape")
    return folder / ("env-" + hashlib.sha256(name).hexdigest()[:8])


def note_home() -> None:
    """Leave word of a home elsewhere for train_gpu.bat and .sh, which can read a line, but find out nothing.

    A console may read any code page: so the part that may have other characters than ASCII is said by its variable.
    """
    places.KEEP.mkdir(exist_ok=True)
    place, local = str(home()), os.environ.get("LOCALAPPDATA", "")
    if WINDOWS and local and place.startswith(local):
        place = "%LOCALAPPDATA%" + place[len(local) :]
    encoding = "oem" if sys.platform == "win32" else "utf-8"
    (places.KEEP / "home.txt").write_text(f"{place}\n", encoding=encoding, errors="replace")


def home_of_runs() -> Path:
    """The folder with runs/ and cache/, which the trainer knows as TRAINDECK_HOME; where there are runs, it stays."""
    chosen = os.environ.get("TRAINDECK_HOME")
    if chosen:
        return Path(chosen)
    fits = has_room(places.ROOT, LONGEST_OF_A_RUN) or (places.ROOT / "runs").exists()
    return places.ROOT if fits else Path.home() / "Traindeck"


def notes() -> "list[str]":
    """What goes elsewhere, and what may not fit: told before minutes of downloads."""
    found = []
    if home() != places.ROOT:
        found.append(f"Packages: {home()} (setup --environment here: beside train_gpu.py)")
    if home_of_runs() != places.ROOT:
        found.append(f"Runs: {home_of_runs()} (set TRAINDECK_HOME for another folder)")
    if not has_room(home()):
        found.append(
            f"WARNING: the path {home()} has {len(str(home()))} characters; over {259 - LONGEST_BELOW} the packages "
            f"may not fit into what Windows allows. Should that fail: {SHORT_HOME}"
        )
    return found
