"""Paths of the environment, the runs and the state files; JSON files."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

WINDOWS = os.name == "nt"
ROOT = Path(__file__).resolve().parents[1]
STATE_FOLDER = ROOT / ".venv-setup"  # choices and lock; kept when .venv is replaced
DOWNLOADS = STATE_FOLDER / "downloads"  # wheels, deleted after their installation unless `--keep-downloads` was given
PACKED_WHEELS = ROOT / "wheels"  # in a copy made by `pack`: the only source of packages
LOG = ROOT / "logs" / "setup.log"
MAX_ENVIRONMENT_SUBPATH = 196  # longest path below an environment home: \\.venv.new\\ and a licence file of torch 2.13
MAX_RUN_SUBPATH = 170  # longest path below the runs home, with a long run name


def read_json(path: Path) -> "dict[str, Any]":
    """Read a JSON object; empty if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: "dict[str, Any]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")  # two setups may run at once
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def windows_long_paths() -> bool:
    """Whether paths may be longer than 259 characters; always true on other systems than Windows."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, "SYSTEM\\CurrentControlSet\\Control\\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:
            return False
    else:
        return True


def path_fits(folder: Path, below: int = MAX_ENVIRONMENT_SUBPATH) -> bool:
    """Whether paths of `below` more characters than `folder` are allowed."""
    return windows_long_paths() or len(str(folder)) + below <= 259


def environment_home() -> Path:
    """The folder of .venv and, during updates, .venv.new and .venv.old (on one disk, because they are renamed).

    TRAINDECK_ENVIRONMENT and `setup --environment` take precedence, then an existing environment, then the path length.
    """
    chosen = os.environ.get("TRAINDECK_ENVIRONMENT") or read_json(STATE_FOLDER / "choices.json").get("environment")
    if chosen and chosen not in ("auto", "here", "none"):
        return private_folder(Path(str(chosen)).absolute())
    if chosen == "here" or not WINDOWS or read_json(ROOT / ".venv" / "traindeck.json").get("complete"):
        return ROOT
    near = private_folder(Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "Traindeck")
    too_deep = not path_fits(ROOT) and len(str(near)) < len(str(ROOT))
    return near if too_deep or near.exists() else ROOT


def private_folder(folder: Path) -> Path:
    """A subfolder for this copy of Traindeck: others, or another .venv, may be in the same folder."""
    name = os.path.normcase(str(ROOT)).encode("utf-8", "surrogateescape")
    return folder / ("env-" + hashlib.sha256(name).hexdigest()[:8])


def used_homes() -> "list[Path]":
    """The folders that have, or had, an environment of this copy: `setup --environment` may have changed."""
    stored = read_json(STATE_FOLDER / "homes.json").get("homes", [])
    return list(dict.fromkeys([ROOT, environment_home(), *map(Path, stored)]))


def write_home_file() -> None:
    """Write the environment home to home.txt, for train_gpu.bat and train_gpu.sh, unless it is Traindeck's own folder.
    `uninstall` removes all that were used.

    LOCALAPPDATA stays a variable: it may have characters that the code page of the console lacks.
    """
    write_json(STATE_FOLDER / "homes.json", {"homes": [str(home) for home in used_homes()]})
    file = STATE_FOLDER / "home.txt"
    if environment_home() == ROOT:
        if file.exists():
            file.unlink()
        return
    place, local = str(environment_home()), os.environ.get("LOCALAPPDATA", "")
    if WINDOWS and local and place.startswith(local):
        place = "%LOCALAPPDATA%" + place[len(local) :]
    encoding = "oem" if sys.platform == "win32" else "utf-8"
    file.write_text(f"{place}\n", encoding=encoding, errors="replace")


def runs_home() -> Path:
    """The folder of runs/ and cache/: TRAINDECK_HOME, else Traindeck's own if it has runs or paths fit there."""
    chosen = os.environ.get("TRAINDECK_HOME")
    if chosen:
        return Path(chosen)
    fits = path_fits(ROOT, MAX_RUN_SUBPATH) or (ROOT / "runs").exists()
    return ROOT if fits else Path.home() / "Traindeck"
