"""Splits of a data set folder: by file names, or as `save_to_disk` of the Hugging Face `datasets` library writes them.

A file belongs to a split by its own name (`train.jsonl`, `train-00000-of-00002.parquet`, `val_zh.csv`) or by the folder
that it is in (`train/a.parquet`), directly below the data set's folder or below its `data/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, Final

TRAIN: Final = "train"
VALIDATION_NAMES: Final = ("validation", "valid", "dev", "val", "test")  # the first one that exists is evaluated
_SPLIT_PREFIX: Final = re.compile(rf"({'|'.join((TRAIN, *VALIDATION_NAMES))})(?:[-_.]|$)")

Splits = dict[str, list[Path]]  # files by split


def group_by_split(folder: Path, files: Iterable[Path]) -> Splits:
    """The files of a folder by split, each in the given order; files of no split are left out."""
    found: Splits = {}
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
    if len(parts) > 1 and parts[0] == "data":
        del parts[0]
    if len(parts) > 1:
        return parts[0] if parts[0] in (TRAIN, *VALIDATION_NAMES) else ""
    named = _SPLIT_PREFIX.match(parts[0])
    return named[1] if named else ""


def saved_splits(folder: Path) -> Splits:
    """The Arrow files of a folder of `save_to_disk` by split; empty for other folders.

    `train_sft` counts as `train`. A folder without splits has one with an empty name. The files may be missing. Raises
    `OSError`.
    """
    listed = _read_json(folder / "dataset_dict.json").get("splits")
    found: Splits = {}
    for name in map(str, listed if isinstance(listed, list) else [""]):
        if Path(name).name == name != ".." and (files := _saved_files(folder / name)):
            named = _SPLIT_PREFIX.match(name)
            found.setdefault(named[1] if named else name, []).extend(files)
    return found


def _saved_files(folder: Path) -> list[Path]:
    """The data files of one split, in order. Only their names count, so they are inside of the folder."""
    listed = _read_json(folder / "state.json").get("_data_files")
    files = listed if isinstance(listed, list) else []
    return [folder / Path(str(one["filename"])).name for one in files if isinstance(one, dict) and "filename" in one]


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or something else."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
