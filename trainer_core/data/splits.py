"""Splits of a data set folder: by file names, or as the Hugging Face `datasets` library writes them.

A file belongs to a split by its own name (`train.jsonl`, `train-00000-of-00002.parquet`, `val_zh.csv`) or by the folder
that it is in (`train/a.parquet`), directly below the data set's folder or below its `data/`.

No torch, no Qt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from trainer_core.messages import TraindeckError

TRAIN: Final = "train"
VALIDATION_NAMES: Final = ("validation", "valid", "dev", "val", "test")  # the first one that exists is evaluated
_SPLIT_PREFIX: Final = re.compile(rf"({'|'.join((TRAIN, *VALIDATION_NAMES))})[-_.]")
_DATA_FOLDER: Final = "data"
_STATE_FILE, _DATASET_DICT_FILE, _DATASET_INFO_FILE = "state.json", "dataset_dict.json", "dataset_info.json"


def group_by_split(folder: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of a folder by split, each in the given order; files of no split are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        split = _split_name(file.relative_to(folder))
        if split:
            found.setdefault(split, []).append(file)
    return found


def choose_validation_split(names: Iterable[str]) -> str:
    """The name of the split to evaluate; empty: there is none."""
    return next((name for name in VALIDATION_NAMES if name in names), "")


def _split_name(relative: PurePath) -> str:
    parts = [part.lower() for part in relative.parts]
    if len(parts) > 1 and parts[0] == _DATA_FOLDER:
        del parts[0]
    if len(parts) > 1:
        return parts[0] if parts[0] in (TRAIN, *VALIDATION_NAMES) else ""
    named = _SPLIT_PREFIX.match(parts[0])
    return named[1] if named else ""


# --- folders of the Hugging Face `datasets` library ------------------------------------------------


def hugging_face_files(folder: Path) -> list[Path] | None:
    """The Arrow files of a folder of `save_to_disk` or of the cache of `load_dataset`; None for other folders.

    Of a data set with splits, the training split, or the only split. The files may be missing. Raises `OSError`, and
    `data.no_train_split` if the choice is ambiguous.
    """
    declared, existing = _splits(folder)
    if not declared:
        shards = _shards(folder)
        cached = [path for path in shards if f"-{TRAIN}" in path.name] or shards
        return _save_to_disk_files(folder) or cached or None
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
            return wanted, [file for name in names for file in _save_to_disk_files(folder / name)]
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


def _splits_named(wanted: str, names: Sequence[str]) -> list[str]:
    """The split of this name, or those whose names begin with it."""
    return [name for name in names if name == wanted] or [name for name in names if name.startswith(wanted)]


def _save_to_disk_files(folder: Path) -> list[Path]:
    listed = _read_json(folder / _STATE_FILE).get("_data_files")
    files = listed if isinstance(listed, list) else []
    names = [str(one["filename"]) for one in files if isinstance(one, dict) and "filename" in one]
    return [folder / Path(name).name for name in names]


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
