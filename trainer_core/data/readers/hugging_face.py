"""Folders that the Hugging Face `datasets` library writes.

No torch, no Qt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer_core.data.splits import TRAIN, VALIDATION_NAMES
from trainer_core.messages import TraindeckError

_STATE_FILE, _DATASET_DICT_FILE, _DATASET_INFO_FILE = "state.json", "dataset_dict.json", "dataset_info.json"


def hugging_face_files(folder: Path) -> list[Path] | None:
    """The Arrow files of a folder of `save_to_disk` or of the cache of `load_dataset`; None for other folders.

    Of a data set with splits, the training split, or the only split. The files may be missing. Raises `OSError`, and
    `data.no_train_split` if the choice is ambiguous.
    """
    declared, existing = _splits(folder)
    if not declared:
        return _save_to_disk_files(folder) or _load_dataset_files(folder)
    chosen = _splits_named(TRAIN, existing) or existing
    if len(chosen) > 1:
        params = {"found": ", ".join(existing), "first": str(folder / chosen[0])}
        raise TraindeckError("data.no_train_split", path=str(folder), **params)
    return _save_to_disk_files(folder / chosen[0]) if chosen else None


def hugging_face_validation(folder: Path) -> tuple[str, list[Path]] | None:
    """Name and files of the validation split; None if there is none. Raises `OSError`."""
    _, existing = _splits(folder)
    for wanted in VALIDATION_NAMES:
        if names := _splits_named(wanted, existing):
            return wanted, [file for name in names for file in _save_to_disk_files(folder / name) or ()]
        cached = [path for path in _shards(folder) if f"-{wanted}" in path.name] if not existing else []
        if cached:
            return wanted, cached
    return None


def _splits(folder: Path) -> tuple[list[str], list[str]]:
    """The splits that dataset_dict.json lists, and those of them that exist."""
    listed = _read_json(folder / _DATASET_DICT_FILE).get("splits")
    names = list(map(str, listed)) if isinstance(listed, list) else []
    safe = (name for name in names if Path(name).name == name != "..")
    return names, [name for name in safe if (folder / name / _STATE_FILE).is_file()]


def _splits_named(wanted: str, names: list[str]) -> list[str]:
    """The split of this name, or those whose names begin with it."""
    return [name for name in names if name == wanted] or [name for name in names if name.startswith(wanted)]


def _save_to_disk_files(folder: Path) -> list[Path] | None:
    listed = _read_json(folder / _STATE_FILE).get("_data_files")
    if not isinstance(listed, list):
        return None
    names = [str(one["filename"]) for one in listed if isinstance(one, dict) and "filename" in one]
    return [folder / Path(name).name for name in names]


def _load_dataset_files(folder: Path) -> list[Path] | None:
    shards = _shards(folder)
    return [path for path in shards if f"-{TRAIN}" in path.name] or shards or None


def _shards(folder: Path) -> list[Path]:
    if not (folder / _DATASET_INFO_FILE).is_file():
        return []
    return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or something else."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
