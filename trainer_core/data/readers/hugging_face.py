"""Data sets that the Hugging Face `datasets` library has written into a folder.

No torch, no Qt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer_core.data.splits import TRAIN as _TRAIN
from trainer_core.data.splits import VALIDATION
from trainer_core.messages import TraindeckError

_STATE, _SPLITS, _ABOUT = "state.json", "dataset_dict.json", "dataset_info.json"


def hugging_face_files(folder: Path) -> list[Path] | None:
    """The Arrow files of a data set in their order; None: the folder is no such data set.

    Of a data set with splits, those of `train` (or of the only one, or the only one that begins so): the
    others are for measuring, not for training. A folder of the library's cache is one too; results that it
    keeps there for itself (`cache-….arrow`) are none of the data. Files may be missing: whoever opens them
    says so. Raises `OSError`, and `data.no_train_split` where nobody can tell which to take.
    """
    if _listed(folder):
        chosen = _training_split(folder)
        return _saved(folder / chosen) if chosen else None
    return _saved(folder) or _cached(folder)


def hugging_face_validation(folder: Path) -> tuple[str, list[Path]] | None:
    """The validation split of a data set, as its name and its files; None: it has none. Raises `OSError`."""
    splits = _splits(folder)
    for wanted in VALIDATION:
        called = [name for name in splits if name == wanted] or [name for name in splits if name.startswith(wanted)]
        if called:
            return wanted, [file for name in called for file in _saved(folder / name) or ()]
        cached = [path for path in _shards(folder) if f"-{wanted}" in path.name] if not splits else []
        if cached:
            return wanted, cached
    return None


def _listed(folder: Path) -> list[str]:
    """The splits that a data set says it has."""
    listed = _content(folder / _SPLITS).get("splits")
    return list(map(str, listed)) if isinstance(listed, list) else []


def _splits(folder: Path) -> list[str]:
    """Those that exist."""
    return [name for name in _listed(folder) if Path(name).name == name != ".." and (folder / name / _STATE).is_file()]


def _training_split(folder: Path) -> str:
    """The name of the split to train on; empty: none of those that are listed exists."""
    found = _splits(folder)
    called = [name for name in found if name == _TRAIN] or [name for name in found if name.startswith(_TRAIN)]
    chosen = called or found
    if len(chosen) > 1:
        told = {"found": ", ".join(found), "first": str(folder / chosen[0])}
        raise TraindeckError("data.no_train_split", path=str(folder), **told)
    return chosen[0] if chosen else ""


def _saved(folder: Path) -> list[Path] | None:
    """What `save_to_disk` has written."""
    listed = _content(folder / _STATE).get("_data_files")
    if not isinstance(listed, list):
        return None
    names = [str(one["filename"]) for one in listed if isinstance(one, dict) and "filename" in one]
    return [folder / Path(name).name for name in names]


def _cached(folder: Path) -> list[Path] | None:
    """What `load_dataset` keeps."""
    shards = _shards(folder)
    return [path for path in shards if f"-{_TRAIN}" in path.name] or shards or None


def _shards(folder: Path) -> list[Path]:
    if not (folder / _ABOUT).is_file():
        return []
    return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))


def _content(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
